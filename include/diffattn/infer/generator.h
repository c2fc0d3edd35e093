// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "diffattn/nn/decoder.h"
#include "diffattn/nn/generate.h"

namespace diffattn::infer {

struct GeneratorOptions {
  /// Rows of a batch that one step computes. More prompts take turns.
  TORCH_ARG(int64_t, max_rows) = 256;
  /// Tokens of a page of the KV cache; a multiple of 16.
  TORCH_ARG(int64_t, page_size) = 64;
};

/// Generates text with a decoder. On a GPU, for a bfloat16 or float16 model of the usual blocks, a
/// token is one launch of a CUDA graph of a few fused kernels per layer: products, attention to a
/// paged KV cache, and sampling. Everything else takes `nn::generate`, the general path.
///
/// A generator keeps the model, its graphs and its buffers; use it for many calls. It reads the
/// model's parameters where they are, so the caller must not move the model while it exists. Not
/// thread-safe.
class Generator {
 public:
  explicit Generator(nn::CausalLM model, const GeneratorOptions& options = {});
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;
  ~Generator();

  /// Continues each prompt, of at least one token. Returns the new tokens of each row. Results of
  /// greedy generation equal those of `nn::generate` unless logits are as close as their rounding.
  /// Random choices depend on the seed, the row's number and the step alone. Throws
  /// diffattn::Error as `nn::generate` does.
  std::vector<std::vector<int64_t>> generate(const std::vector<std::vector<int64_t>>& prompts,
                                             const nn::SamplingOptions& options,
                                             const nn::OnToken& on_token = {});

  /// True if `generate` uses CUDA graphs.
  bool uses_graphs() const;
  /// Returns why it does not; empty if it does.
  const std::string& reason() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace diffattn::infer
