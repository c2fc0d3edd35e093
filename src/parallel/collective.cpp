// SPDX-License-Identifier: Apache-2.0
#include "diffattn/parallel/collective.h"

#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "diffattn/error.h"
#include "parallel/through_host.h"

namespace diffattn::parallel {
namespace {

using torch::Tensor;

class OneProcess : public Collective {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  bool takes(torch::DeviceType) const override { return true; }
  std::shared_ptr<Collective> second() override { return one_process(); }
  Started broadcast(const Tensor&, int64_t) override { return {}; }
  Started all_reduce(const Tensor&) override { return {}; }
  Started reduce_scatter(const Tensor& out, const Tensor& in) override { return copied(out, in); }
  Started all_gather(const Tensor& out, const Tensor& in) override { return copied(out, in); }
  Started exchange(const Tensor& out, const Tensor& in, std::vector<int64_t>,
                   std::vector<int64_t>) override {
    return copied(out, in);
  }

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

void join(const std::string& group_name, const std::string& second, bool shared_gpus) {
  auto processes = group_name.empty() ? one_process() : process_group(group_name, second);
  if (shared_gpus) processes = through_host(std::move(processes));
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

void check_device(const Collective& world, torch::Device device) {
  if (world.takes(device.type())) return;
  throw Error(c10::str("parallel: the ", world.size(), " processes need NCCL for tensors on ",
                       device, ", which this torch does not have; install a torch with CUDA, or ",
                       "compute on the CPU"));
}

bool any_rank(Collective& world, bool here) {
  if (world.size() == 1) return here;
  const Tensor votes = torch::full({1}, here ? 1 : 0, torch::kLong);
  world.all_reduce(votes).wait();
  return votes.item<int64_t>() > 0;
}

std::vector<std::string> all_gather_texts(Collective& world, const std::string& text) {
  const auto ranks = world.size();
  const Tensor sizes = torch::empty({ranks}, torch::kLong);
  world.all_gather(sizes, torch::full({1}, static_cast<int64_t>(text.size()), torch::kLong)).wait();
  const int64_t longest = std::max<int64_t>(1, sizes.max().item<int64_t>());
  const Tensor own = torch::zeros({longest}, torch::kUInt8);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  const Tensor all = torch::empty({ranks * longest}, torch::kUInt8);
  world.all_gather(all, own).wait();
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto* begin = static_cast<const char*>(all.const_data_ptr()) + rank * longest;
    texts.emplace_back(begin, static_cast<size_t>(sizes[rank].item<int64_t>()));
  }
  return texts;
}

// Python names the groups that the verbs of this process work in; "" leaves them.
TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  m.def("join_process_group(str name, str second, bool shared_gpus=False) -> ()",
        [](const std::string& name, const std::string& second, bool shared_gpus) {
          join(name, second, shared_gpus);
        });
}

}  // namespace diffattn::parallel
