// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/nn/decoder.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// Returns the model configuration of a resolved config with a known model.vocab_size.
nn::ModelConfig model_config_of(const RunConfig& config);

/// Returns a causal model with random weights from config.seed. The same config gives the same
/// bits.
nn::CausalLM new_model(const RunConfig& config);

}  // namespace diffattn::train
