// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>

#include "diffattn/data/examples.h"
#include "diffattn/data/packed_rows.h"
#include "diffattn/nn/decoder.h"

namespace diffattn::train {

/// One micro-batch: the input of a model and the labels.
struct Batch {
  torch::Tensor ids;  // [B, N] int64, or [total] if packed
  /// int64; -100 marks a label that does not count. Language models: the next token, in the shape
  /// of `ids`. Classifiers: the class, [B]. Encoder-decoders: the next token of each target token,
  /// [B, M].
  torch::Tensor labels;
  nn::AttentionMask mask;
  std::optional<torch::Tensor> positions;
  /// [n] int64: indices of the labels that count in the flattened labels, if known. The head then
  /// computes logits for these rows only.
  std::optional<torch::Tensor> answer_rows = {};
  torch::Tensor target_ids = {};  // [B, M] int64: input of the decoder of an encoder-decoder

  nn::DecoderInput model_input() const;
  /// Returns the number of labels that count.
  int64_t label_count() const;
  /// Returns the number of tokens of `ids` that are not padding.
  int64_t text_rows() const;
  Batch to(torch::Device device) const;
};

/// Converts rows to one packed sequence per segment, so that documents in a row do not see each
/// other. Without rows, `ids` stays undefined.
Batch packed_batch(const data::RowBatch& rows);
/// Converts rows of a generated task, one sequence per row, to [B, N].
Batch sequence_batch(const data::RowBatch& rows);
/// Converts texts and their classes, with padding on the right.
Batch classification_batch(const data::ExampleSet& set);
/// Converts documents and summaries, with padding on the right. The decoder reads `begin_token`
/// before each summary.
Batch summarization_batch(const data::ExampleSet& set, int64_t begin_token);

/// An endless stream of micro-batches. Its order depends only on a seed and on a position that can
/// be saved.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual Batch next() = 0;
  /// Returns the position of the next batch as JSON text.
  virtual std::string position() const = 0;
  /// Moves to a position that position() returned. Throws io::Error for any other text.
  virtual void seek(const std::string& position) = 0;
};

}  // namespace diffattn::train
