// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

namespace diffattn {

/// Heads among the columns of a projection: head i begins at column + i head_stride.
struct HeadColumns {
  int64_t column = 0, heads = 0, head_stride = 0, dim = 0;
};

/// The heads of a projection, and the rotary embedding of those in q and k: whole heads, in pairs
/// (i, i + head_dim / 2).
struct ProjectionLayout {
  std::vector<HeadColumns> parts;  // of q, then of k, then of v
  int64_t head_dim = 0;            // of q and k
  torch::Tensor cos, sin;          // as for `rotate`; undefined: no rotation
  /// The rows of the matrix v are (half, head, head_dim); its columns shall be (head, half,
  /// head_dim), so that the two halves of a head are adjacent.
  bool joins_value_halves = false;
};

/// The matrices q [Q, E], k [K, E] and v [V, E] of a self-attention.
struct ProjectionWeights {
  torch::Tensor q, k, v;
};

/// True if one product for q, k and v is faster than three: in training on a GPU, with x and
/// matrices of one type.
bool takes_projected_heads(const torch::Tensor& x, const ProjectionWeights& weights);

/// Computes x [q; k; v]^T as one product, with gradients, and rotates the heads of q and k in
/// place. x [B, N, E] or [total, E]. Returns one tensor [..., heads, dim] for each of the layout's
/// parts, all in the memory of the product. The parts must cover each of the Q + K + V columns
/// once.
std::vector<torch::Tensor> projected_heads(const torch::Tensor& x, const ProjectionWeights& weights,
                                           const ProjectionLayout& layout);

}  // namespace diffattn
