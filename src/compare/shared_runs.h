// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "compare/compare.h"
#include "diffattn/parallel/collective.h"

/// Divides the runs of a comparison among the processes of a job: rank
/// (seed * models + model) % processes trains the run of a model with a seed.
namespace diffattn::compare {

int64_t rank_of_run(const parallel::Collective& world, size_t models, size_t model, size_t seed);

/// A model with a seed.
struct RunNumber {
  size_t model, seed;
};

/// Returns the runs of a process. Models of the same seed run next to each other.
std::vector<RunNumber> runs_of(const CompareOptions& options, const parallel::Collective& world,
                               int64_t rank);

/// Gives every process the results that the others have in `models`.
void gather_runs(parallel::Collective& world, std::vector<ModelResult>& models);

/// Copies parameters and buffers from the module of rank `from` to that of rank 0. All ranks call
/// it; the module is null on the others.
void send_to_first(parallel::Collective& world, int64_t from, const torch::nn::Module* module);

}  // namespace diffattn::compare
