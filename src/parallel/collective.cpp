// SPDX-License-Identifier: Apache-2.0
#include "diffattn/parallel/collective.h"

#include <torch/library.h>

#include <mutex>
#include <vector>

#include "diffattn/error.h"

namespace diffattn::parallel {
namespace {

using torch::Tensor;

class OneProcess : public Collective {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  Started broadcast(const Tensor&, int64_t) override { return {}; }
  Started all_reduce(const Tensor&) override { return {}; }
  Started reduce_scatter(const Tensor& out, const Tensor& in) override { return copied(out, in); }
  Started all_gather(const Tensor& out, const Tensor& in) override { return copied(out, in); }
  Started all_to_all(const Tensor& out, const Tensor& in) override { return copied(out, in); }

 private:
  static Started copied(const Tensor& out, const Tensor& in) {
    const torch::NoGradGuard no_grad;
    out.copy_(in);
    return {};
  }
};

struct World {
  std::mutex mutex;
  std::shared_ptr<Collective> processes = one_process();
};

World& this_world() {
  static World instance;
  return instance;
}

}  // namespace

std::shared_ptr<Collective> one_process() { return std::make_shared<OneProcess>(); }

std::shared_ptr<Collective> world() {
  World& here = this_world();
  const std::scoped_lock lock(here.mutex);
  return here.processes;
}

void join(const std::string& group_name) {
  auto processes = group_name.empty() ? one_process() : process_group(group_name);
  World& here = this_world();
  const std::scoped_lock lock(here.mutex);
  here.processes = std::move(processes);
}

void check_same(Collective& world, const std::string& what, const std::string& text) {
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(text));
  const Tensor all = torch::empty({world.size()}, torch::kLong);
  world.all_gather(all, torch::full({1}, hash, torch::kLong)).wait();
  std::string others;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    if (all[rank].item<int64_t>() == all[0].item<int64_t>()) continue;
    others += (others.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (others.empty()) return;
  throw Error(what + ": expected the same on all ranks, got another one on rank " + others +
              " than on rank 0");
}

// Python names the group that the verbs of this process work in; "" leaves it.
TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  m.def("join_process_group(str name) -> ()", [](const std::string& name) { join(name); });
}

}  // namespace diffattn::parallel
