// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>

#include "diffattn/nn/decoder.h"

namespace diffattn::train {

/// One micro-batch: what a model reads and what it should say.
struct Batch {
  torch::Tensor ids;  // [B, N] int64; packed [total]
  /// The token that should follow each of `ids`, in their shape; classes [B]; with target_ids
  /// [B, M], the token that should follow each of those. -100: not counted.
  torch::Tensor labels;
  nn::AttentionMask mask;
  std::optional<torch::Tensor> positions;
  /// [n] int64: which labels count, as rows of the flattened ones, where that is known. Only these
  /// pass through the head.
  std::optional<torch::Tensor> answer_rows = {};
  torch::Tensor target_ids = {};  // [B, M] int64: what an encoder-decoder's decoder reads

  nn::DecoderInput model_input() const;
  Batch to(torch::Device device) const;
};

/// Endless micro-batches whose order depends on nothing but a seed and a position that can be
/// saved.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual Batch next() = 0;
  /// Where the next batch comes from, as JSON text.
  virtual std::string position() const = 0;
  /// Goes to a place that `position` gave; throws io::Error for any other text.
  virtual void seek(const std::string& position) = 0;
};

}  // namespace diffattn::train
