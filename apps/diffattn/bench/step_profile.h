// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/diffattn/bench/sweep.h"
#include "diffattn/train/trainer.h"

namespace diffattn::app {

/// Runs updates under torch's profiler. Returns `entries`, the longest kernels (on a CPU operators,
/// without their callees) with their time and calls per update. On a GPU also, per update:
/// `busy_ms`, in which at least one kernel ran, `idle_ms` between kernels, and `idle`, the kernels
/// before which the GPU was idle longest.
Json profile_steps(train::Trainer& trainer, train::BatchSource& source, bool on_gpu);

void print_step_profile(const Json& profile);

}  // namespace diffattn::app
