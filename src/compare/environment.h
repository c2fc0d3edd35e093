// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "compare/compare.h"

namespace diffattn::compare {

/// Returns the name of what trains: the GPU, else the processor.
std::string machine_of(const Environment& environment);
/// Returns "diffattn 0.2.0, torch 2.11.0", or an empty text if the versions are unknown.
std::string software_of(const Environment& environment);

/// Returns the time that all runs trained, with those that tried learning rates. Each run counts in
/// full, also while others trained in parallel.
double train_seconds(const Comparison& comparison);

/// Returns one line with machines, threads, versions and the time of training, or an empty text if
/// the environment is unknown.
std::string environment_line(const Comparison& comparison);

}  // namespace diffattn::compare
