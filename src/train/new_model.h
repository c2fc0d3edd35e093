// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "diffattn/nn/decoder.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// The model that a resolved config describes; its vocab_size must be known.
nn::ModelConfig model_config_of(const RunConfig& config);

/// The same, drawn from the config's seed: the same config gives the same bits.
nn::CausalLM new_model(const RunConfig& config);

/// Memory of a training step in bytes, by what it is for.
struct MemoryEstimate {
  int64_t parameters = 0;   // weights, in mixed precision with their bfloat16 copies
  int64_t optimizer = 0;    // both moments
  int64_t gradients = 0;    // of all weights: they come as activations go
  int64_t activations = 0;  // saved for the backward pass
  int64_t working = 0;      // the loss's chunk of logits and gradients, or those of one layer
  int64_t runtime = 0;      // of the process itself and its heap; on a GPU not counted

  /// At the peak: where the backward pass begins, or where it ends.
  int64_t total() const {
    return parameters + optimizer + runtime + std::max(activations + working, gradients);
  }
};

MemoryEstimate estimate_memory(const RunConfig& config, int64_t parameter_count);

}  // namespace diffattn::train
