// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>

#include "diffattn/parallel/collective.h"
#include "diffattn/train/batch.h"
#include "nn/routes/shared_rows.h"
#include "train/row_exchange.h"

namespace diffattn::train {

/// Computes a language model on the tokens that a group of processes shares. Every process has some
/// tokens of each row, and only attention needs the others.
///
/// If the number of processes divides the numbers of heads, they exchange rows for heads (Ulysses):
/// each computes some heads of whole rows. Else each receives all keys and values and computes its
/// own rows; it then has tokens from the beginning and from the end, so that all have as much work.
class ContextParallel final : public nn::SharedRows {
 public:
  /// `size` ranks of `world`, a divisor of their number, share the tokens of a row. Throws
  /// ConfigError if a layer of the model mixes tokens in another way than by attention.
  ContextParallel(std::shared_ptr<parallel::Collective> world, int64_t size,
                  const torch::nn::Module& model);

  /// Returns this process's tokens of a batch. Later calls of the model must use them.
  Batch part(const Batch& batch);

  torch::Tensor attend(nn::Route route, const nn::HeadTensors& heads) override;

 private:
  torch::Tensor by_heads(nn::Route route, nn::HeadTensors heads) const;
  torch::Tensor by_keys(nn::Route route, nn::HeadTensors heads) const;
  /// For packed sequences, the rows and keys of each piece of a sequence that this process has.
  struct PackedKeys {
    torch::Tensor cu_seqlens_q, cu_seqlens_k;  // int32
    torch::Tensor keys;                        // int64: indices among all tokens
  };
  PackedKeys packed_keys(const torch::Tensor& cu_seqlens) const;

  std::shared_ptr<parallel::Collective> world_;
  int64_t size_;
  bool by_heads_ = true;
  c10::intrusive_ptr<RowExchange> exchange_;  // for the tokens of the last part()
};

}  // namespace diffattn::train
