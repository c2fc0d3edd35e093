// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/nn/decoder.h"
#include "serve/engine/scheduler.h"

namespace diffattn::serve {

/// Loads the model of a folder onto a device. Throws io::Error, also for classifiers.
nn::CausalLM load_served_model(const SchedulerOptions& options);

/// Returns the options with numbers in the place of those that the device decides.
SchedulerOptions resolved(SchedulerOptions options, const nn::ModelConfig& config);

}  // namespace diffattn::serve
