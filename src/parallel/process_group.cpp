// SPDX-License-Identifier: Apache-2.0
//
// Collective operations of a c10d process group.

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "diffattn/error.h"
#include "diffattn/parallel/collective.h"
#include "parallel/failure_message.h"

// torch 2.13 has new names for some operations, which 2.11 does not have yet.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace diffattn::parallel {
namespace {

using torch::Tensor;
using Work = c10::intrusive_ptr<c10d::Work>;

class ProcessGroup : public Collective {
 public:
  ProcessGroup(c10::intrusive_ptr<c10d::ProcessGroup> group,
               c10::intrusive_ptr<c10d::ProcessGroup> second)
      : group_(std::move(group)), second_(std::move(second)) {}

  int64_t rank() const override { return group_->getRank(); }
  int64_t size() const override { return group_->getSize(); }
  bool is_group() const override { return true; }
  bool takes(torch::DeviceType device) const override {
    const auto devices = group_->getDeviceTypes();
    return std::ranges::find(devices, device, &torch::Device::type) != devices.end();
  }
  std::shared_ptr<Collective> second() override {
    return std::make_shared<ProcessGroup>(second_, group_);
  }

  Started broadcast(const Tensor& tensor, int64_t root) override {
    return started("broadcast", [&] {
      std::vector<Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }

  Started all_reduce(const Tensor& tensor) override {
    return started("sum", [&] {
      std::vector<Tensor> tensors{tensor};
      return group_->allreduce(tensors);
    });
  }

  Started reduce_scatter(const Tensor& out, const Tensor& in) override {
    return started("sum", [&] {
      Tensor to = out, from = in;
      return group_->_reduce_scatter_base(to, from);
    });
  }

  Started all_gather(const Tensor& out, const Tensor& in) override {
    return started("gather", [&] {
      Tensor to = out, from = in;
      return group_->_allgather_base(to, from);
    });
  }

  Started exchange(const Tensor& out, const Tensor& in, std::vector<int64_t> out_counts,
                   std::vector<int64_t> in_counts) override {
    return started("exchange", [&] {
      Tensor to = out, from = in;
      return group_->alltoall_base(to, from, out_counts, in_counts);
    });
  }

 private:
  /// Starts an operation. Tensors live until it is done, because `Work` holds them.
  template <class Start>
  Started started(const char* what, const Start& start) {
    const torch::NoGradGuard no_grad;
    const std::string where = c10::str(what, " on rank ", rank(), " of ", size());
    Work work = explained(where, start);
    return Started([where, work] { explained(where, [&] { return work->wait(), 0; }); });
  }

  template <class Call>
  static auto explained(const std::string& where, const Call& call) -> decltype(call()) {
    try {
      return call();
    } catch (const c10::Error& error) {
      throw Error(failure_message(where, error.what_without_backtrace()));
    } catch (const std::exception& error) {
      throw Error(failure_message(where, error.what()));
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_, second_;
};

c10::intrusive_ptr<c10d::ProcessGroup> named(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    throw Error("parallel: group: expected the name of a process group of this process, got '" +
                name + "'");
  }
}

}  // namespace

std::shared_ptr<Collective> process_group(const std::string& name, const std::string& second) {
  return std::make_shared<ProcessGroup>(named(name), named(second));
}

}  // namespace diffattn::parallel
