// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/nn/decoder.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// The model that a resolved config describes; its vocab_size must be known.
nn::ModelConfig model_config_of(const RunConfig& config);

/// The same, drawn from the config's seed: the same config gives the same bits.
nn::CausalLM new_model(const RunConfig& config);

/// Memory of a training step in bytes, by what it is for.
struct MemoryEstimate {
  int64_t parameters = 0;  // weights
  int64_t gradients = 0;
  int64_t optimizer = 0;    // both moments
  int64_t activations = 0;  // saved for the backward pass, at their peak
  int64_t logits = 0;       // one chunk, and the gradient of the head

  int64_t total() const { return parameters + gradients + optimizer + activations + logits; }
};

MemoryEstimate estimate_memory(const RunConfig& config, int64_t parameter_count);

}  // namespace diffattn::train
