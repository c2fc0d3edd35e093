// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "compare/measure.h"
#include "diffattn/parallel/collective.h"

namespace diffattn::compare {

/// Trains every model with every seed, several in parallel, measures them and writes the results to
/// `comparison`, whose models and runs exist already. The processes of `world` share the runs; each
/// gets the results of all. Returns the models of the first seed, on rank 0 those of all processes.
/// If `measured` is false, it computes only the validation loss, and saves and returns no models.
std::vector<Trained> train_all(const CompareOptions& options, const CompareEvents& events,
                               Comparison& comparison, parallel::Collective& world,
                               bool measured = true);

}  // namespace diffattn::compare
