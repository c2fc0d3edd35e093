// SPDX-License-Identifier: Apache-2.0
#include "compare/shared_runs.h"

#include "compare/saved_runs.h"

namespace diffattn::compare {
namespace {

using torch::Tensor;

/// Calls `work` with every run of one rank, in the same order on all ranks.
template <class Models, class Work>
void for_runs(const parallel::Collective& world, Models& models, int64_t rank, const Work& work) {
  for (size_t model = 0; model < models.size(); ++model) {
    for (size_t seed = 0; seed < models[model].runs.size(); ++seed) {
      if (rank_of_run(world, models.size(), model, seed) == rank) work(models[model].runs[seed]);
    }
  }
}

std::vector<Tensor> state_of(const torch::nn::Module& module) {
  std::vector<Tensor> state = module.parameters();
  for (const Tensor& buffer : module.buffers()) state.push_back(buffer);
  return state;
}

}  // namespace

int64_t rank_of_run(const parallel::Collective& world, size_t models, size_t model, size_t seed) {
  return static_cast<int64_t>(seed * models + model) % world.size();
}

std::vector<RunNumber> runs_of(const CompareOptions& options, const parallel::Collective& world,
                               int64_t rank) {
  std::vector<RunNumber> own;
  for (size_t seed = 0; seed < options.seeds.size(); ++seed) {
    for (size_t model = 0; model < options.models.size(); ++model) {
      if (rank_of_run(world, options.models.size(), model, seed) == rank) {
        own.push_back({model, seed});
      }
    }
  }
  return own;
}

void gather_runs(parallel::Collective& world, std::vector<ModelResult>& models) {
  if (world.size() == 1) return;
  std::vector<const RunResult*> own;
  for_runs(world, models, world.rank(), [&](const RunResult& run) { own.push_back(&run); });
  const auto all = parallel::all_gather_texts(world, runs_to_text(own));
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const std::vector<RunResult> runs = runs_from_text(all[static_cast<size_t>(rank)]);
    size_t next = 0;
    for_runs(world, models, rank, [&](RunResult& run) { run = runs.at(next++); });
  }
}

void send_to_first(parallel::Collective& world, int64_t from, const torch::nn::Module* module) {
  const torch::NoGradGuard no_grad;
  const bool sends = world.rank() == from, receives = world.rank() == 0;
  const auto state = sends || receives ? state_of(*module) : std::vector<Tensor>();
  std::vector<Tensor> flat{torch::empty({0}, torch::kUInt8)};
  for (const Tensor& tensor : state) {
    flat.push_back(tensor.detach().cpu().contiguous().flatten().view(torch::kUInt8));
  }
  const Tensor own = torch::cat(flat);
  std::vector<int64_t> in_counts(static_cast<size_t>(world.size()), 0), out_counts = in_counts;
  if (sends) in_counts[0] = own.numel();
  if (receives) out_counts[static_cast<size_t>(from)] = own.numel();
  const Tensor nothing = torch::empty({0}, torch::kUInt8);
  const Tensor received = receives ? torch::empty_like(own) : nothing;
  world.exchange(received, sends ? own : nothing, out_counts, in_counts).wait();
  if (!receives) return;
  int64_t at = 0;
  for (const Tensor& tensor : state) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    const Tensor piece = received.narrow(0, at, bytes).clone();
    Tensor(tensor).copy_(piece.view(tensor.scalar_type()).view(tensor.sizes()));
    at += bytes;
  }
}

}  // namespace diffattn::compare
