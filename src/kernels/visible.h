// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "diffattn/kernels/half.h"
#include "diffattn/kernels/params.h"

namespace diffattn {

/// The location of one sequence in its tensors, and the alignment of its rows with its columns.
struct Sequence {
  int64_t q_begin = 0;    // first row in the tensor; 0 unless packed
  int64_t seq_q = 0;      // M of this sequence
  int64_t k_begin = 0;    // first column in the tensor; 0 unless packed
  int64_t seq_k = 0;      // N of this sequence
  int64_t first_key = 0;  // columns [first_key, end_key) are not padding
  int64_t end_key = 0;
  int64_t diagonal = 0;  // m' - m
};

inline Sequence sequence_of(const Problem& problem, int64_t b) {
  Sequence seq{.seq_q = problem.seq_q, .seq_k = problem.seq_k};
  if (problem.cu_seqlens_q != nullptr) {
    seq.q_begin = problem.cu_seqlens_q[b];
    seq.seq_q = problem.cu_seqlens_q[b + 1] - seq.q_begin;
    seq.k_begin = problem.cu_seqlens_k[b];
    seq.seq_k = problem.cu_seqlens_k[b + 1] - seq.k_begin;
  }
  seq.first_key = problem.key_starts == nullptr ? 0 : problem.key_starts[b];
  seq.end_key = problem.key_lengths == nullptr ? seq.seq_k : problem.key_lengths[b];
  const int64_t last_row_at = problem.align_to_key_lengths ? seq.end_key : seq.seq_k;
  seq.diagonal = last_row_at - seq.seq_q;
  return seq;
}

/// The columns [begin, end) that a row sees before the mask applies.
struct Columns {
  int64_t begin = 0;
  int64_t end = 0;
};

inline Columns columns_of(const Problem& problem, const Sequence& seq, int64_t m) {
  Columns columns{seq.first_key, seq.end_key};
  const int64_t place = m + seq.diagonal;  // m'
  const Window bounds = problem.bounds();
  columns.begin = std::max(columns.begin, place - bounds.left);
  columns.end = std::min(columns.end, place + bounds.right + 1);
  columns.end = std::max(columns.begin, columns.end);
  return columns;
}

/// The mask at one entry: whether the entry is visible, and the bias added to its scores.
struct MaskEntry {
  bool visible = true;
  double bias = 0.0;
};

inline MaskEntry mask_entry(const Mask& mask, int64_t b, int64_t h, int64_t m, int64_t n) {
  if (mask.kind == MaskKind::kNone) return {};
  const MaskStrides& stride = mask.strides;
  const int64_t at = b * stride.batch + h * stride.head + m * stride.row + n * stride.column;
  if (mask.kind == MaskKind::kBoolean) {
    return {static_cast<const uint8_t*>(mask.data)[at] != 0, 0.0};
  }
  double bias = 0.0;
  switch (mask.dtype) {
    case Dtype::kFloat64: bias = static_cast<const double*>(mask.data)[at]; break;
    case Dtype::kFloat32: bias = static_cast<const float*>(mask.data)[at]; break;
    case Dtype::kBFloat16:
      bias = static_cast<float>(static_cast<const BFloat16*>(mask.data)[at]);
      break;
    case Dtype::kFloat16:
      bias = static_cast<float>(static_cast<const Float16*>(mask.data)[at]);
      break;
  }
  return {bias != -INFINITY, bias};
}

}  // namespace diffattn
