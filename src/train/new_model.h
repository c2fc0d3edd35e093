// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/nn/decoder.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// Returns the model configuration of a resolved config with a known model.vocab_size.
nn::ModelConfig model_config_of(const RunConfig& config);

/// Returns a causal model: with the weights of the folder in model.from, or with random ones from
/// config.seed. The same config gives the same bits.
nn::CausalLM new_model(const RunConfig& config);

/// Sets the sizes of [model] to those of the folder in model.from, if there is one. Throws
/// io::Error or ConfigError if it holds no causal language model.
void take_sizes_of_folder(RunConfig& config);

}  // namespace diffattn::train
