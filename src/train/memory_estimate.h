// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// Memory of a training step in one process, in bytes.
struct MemoryEstimate {
  int64_t parameters = 0;   // weights; in mixed precision with their bfloat16 copies
  int64_t optimizer = 0;    // both moments
  int64_t gradients = 0;    // at the end of the backward pass, when the activations are freed
  int64_t activations = 0;  // saved for the backward pass
  int64_t working = 0;      // one chunk of logits and gradients, or the gradients of one layer
  int64_t runtime = 0;      // the process and its unused heap; 0 on a GPU

  /// Returns the peak, which is at the beginning or at the end of the backward pass.
  int64_t total() const {
    return parameters + optimizer + runtime + std::max(activations + working, gradients);
  }
};

/// Estimates the memory of each process of a run whose rows have train.seq_len tokens. Rows of
/// texts may be shorter. config.job says how many processes divide the rows.
MemoryEstimate estimate_memory(const RunConfig& config, int64_t parameter_count);

}  // namespace diffattn::train
