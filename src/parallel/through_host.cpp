// SPDX-License-Identifier: Apache-2.0
#include "parallel/through_host.h"

#include <utility>

namespace diffattn::parallel {
namespace {

using torch::Tensor;

class ThroughHost : public Collective {
 public:
  explicit ThroughHost(std::shared_ptr<Collective> inner) : inner_(std::move(inner)) {}

  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }
  bool is_group() const override { return inner_->is_group(); }
  bool takes(torch::DeviceType) const override { return true; }
  std::shared_ptr<Collective> second() override { return through_host(inner_->second()); }

  Started broadcast(const Tensor& tensor, int64_t root) override {
    return staged(tensor, tensor,
                  [&](const Tensor& out, const Tensor&) { return inner_->broadcast(out, root); });
  }
  Started all_reduce(const Tensor& tensor) override {
    return staged(tensor, tensor,
                  [&](const Tensor& out, const Tensor&) { return inner_->all_reduce(out); });
  }
  Started reduce_scatter(const Tensor& out, const Tensor& in) override {
    return staged(out, in, [&](const Tensor& to, const Tensor& from) {
      return inner_->reduce_scatter(to, from);
    });
  }
  Started all_gather(const Tensor& out, const Tensor& in) override {
    return staged(out, in, [&](const Tensor& to, const Tensor& from) {
      return inner_->all_gather(to, from);
    });
  }
  Started exchange(const Tensor& out, const Tensor& in, std::vector<int64_t> out_counts,
                   std::vector<int64_t> in_counts) override {
    return staged(out, in, [&](const Tensor& to, const Tensor& from) {
      return inner_->exchange(to, from, std::move(out_counts), std::move(in_counts));
    });
  }

 private:
  /// Starts an operation on copies of `out` and `in`, which may be one tensor, in host memory.
  template <class Start>
  Started staged(const Tensor& out, const Tensor& in, const Start& start) {
    if (inner_->takes(out.device().type())) return start(out, in);
    const torch::NoGradGuard no_grad;
    const auto host = [](const Tensor& t) {
      return t.to(torch::kCPU, t.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    };
    const Tensor from = host(in);
    const Tensor to =
        out.is_same(in) ? from : torch::empty(out.sizes(), out.options().device(torch::kCPU));
    Started work = start(to, from);
    return Started([out, to, from, work]() mutable {
      work.wait();
      const torch::NoGradGuard copies_only;
      out.copy_(to);
    });
  }

  std::shared_ptr<Collective> inner_;
};

}  // namespace

std::shared_ptr<Collective> through_host(std::shared_ptr<Collective> inner) {
  return std::make_shared<ThroughHost>(std::move(inner));
}

}  // namespace diffattn::parallel
