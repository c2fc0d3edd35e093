// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/infer/batcher.h"

namespace diffattn::infer {

/// Continues lists of prompts with a decoder, on the engine that `Batcher` describes. Models that
/// its fused steps do not support take `nn::generate`, the general path.
///
/// A generator keeps the model, its graphs and its buffers; use it for many calls. The caller must
/// not move the model while it exists. Not thread-safe.
class Generator {
 public:
  explicit Generator(nn::CausalLM model, const GeneratorOptions& options = {});

  /// Continues each prompt, of at least one token. Returns the new tokens of each row. Results of
  /// greedy generation equal those of `nn::generate` unless logits are as close as their rounding.
  /// Random choices depend on the seed, the row's number and the step alone. Throws
  /// diffattn::Error as `nn::generate` does.
  std::vector<std::vector<int64_t>> generate(const std::vector<std::vector<int64_t>>& prompts,
                                             const nn::SamplingOptions& options,
                                             const nn::OnToken& on_token = {});

  /// True if `generate` uses fused steps.
  bool uses_steps() const { return batcher_.uses_steps(); }
  /// Returns why it does not; empty if it does.
  const std::string& reason() const { return batcher_.reason(); }

  Batcher::Load load() const { return batcher_.load(); }

 private:
  nn::CausalLM model_;
  Batcher batcher_;
};

}  // namespace diffattn::infer
