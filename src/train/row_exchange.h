// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "diffattn/parallel/collective.h"
#include "diffattn/parallel/token_ranges.h"

namespace diffattn::train {

using parallel::TokenRange;

/// The tokens of a batch that each process of a group has. A group is some consecutive ranks of a
/// job; all ranks exchange at the same time, each within its group.
class RowExchange : public torch::CustomClassHolder {
 public:
  /// Divides `tokens` among groups of `size` processes (parallel::token_ranges).
  RowExchange(std::shared_ptr<parallel::Collective> world, int64_t size, int64_t tokens,
              bool zigzag);

  const std::vector<TokenRange>& own() const { return ranges_[static_cast<size_t>(rank_)]; }
  int64_t size() const { return size_; }
  int64_t rank() const { return rank_; }  // in the group

  enum class Move {
    kToHeads,    // [B, own tokens, H, D] -> [B, all tokens, H / size, D]
    kToRows,     // its inverse
    kGather,     // [B, own tokens, H, D] -> [B, all tokens, H, D]
    kSumToRows,  // [B, all tokens, H, D] -> [B, own tokens, H, D], summed over the group
  };
  torch::Tensor move(Move kind, const torch::Tensor& x) const;

 private:
  using Shape = std::vector<int64_t>;
  /// Sends parts[i] to process i of the group, and returns tensors of these shapes from them.
  std::vector<torch::Tensor> exchange(const std::vector<torch::Tensor>& parts,
                                      const std::vector<Shape>& shapes) const;
  std::vector<torch::Tensor> parts_by_rows(const torch::Tensor& all) const;
  torch::Tensor in_order(const std::vector<torch::Tensor>& parts) const;

  std::shared_ptr<parallel::Collective> world_;
  int64_t size_, rank_;
  std::vector<std::vector<TokenRange>> ranges_;  // by process of the group
  std::vector<int64_t> counts_;                  // tokens of each
};

/// Calls move() with autograd: the backward applies the inverse move.
torch::Tensor moved(const c10::intrusive_ptr<RowExchange>& exchange, RowExchange::Move kind,
                    const torch::Tensor& x);

}  // namespace diffattn::train
