// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "diffattn/kernels/params.h"
#include "tests/support/generators.h"
#include "tests/support/tensor.h"

namespace diffattn::testing {

/// The numbers of a case in logical order, rounded to the storage type as the kernel reads them. A
/// packed case holds its sequences one after the other.
struct Values {
  std::vector<double> q1;           // [rows_q, H, D]
  std::vector<double> q2;           // [rows_q, noise heads, D]
  std::vector<double> k1, k2;       // [rows_k, Hkv, D]
  std::vector<double> v;            // [rows_k, Hkv, Dv]
  std::vector<double> lambda;       // [1], [H] or [rows_q, H]
  std::vector<double> norm_weight;  // [Dv] or empty
  std::vector<double> mask;         // [B|1, M|1, H|1, N|1]; M and N swapped if transposed
  std::vector<double> dout;         // [rows_q, H, Dv]
  std::vector<int32_t> key_starts, key_lengths;     // [B] or empty
  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k;  // [B + 1] or empty
};

/// The inputs of one call. Owns their memory and returns parameters that point to it. To alter a
/// case, change `values` and call `store()`.
class Case {
 public:
  Case(const Spec& spec, Dtype dtype);

  Problem problem() const;
  ForwardParams forward() const;    // outputs are null
  BackwardParams backward() const;  // outputs, lse and o are null

  /// Writes `values` to memory and reads them back, rounded to the storage type.
  void store();
  std::string describe() const;

  Dims query_dims(int64_t width) const;  // of q1, out, lse
  Dims noise_dims(int64_t width) const;  // of q2
  Dims key_dims(int64_t width) const;    // of k, v
  const Dims& lambda_dims() const { return lambda_.dims(); }
  const Dims& mask_dims() const { return mask_dims_; }
  MaskStrides mask_strides() const;  // of the mask and of its dense gradient

  int64_t rows_q() const;
  int64_t rows_k() const;
  int64_t len_q(int64_t b) const;
  int64_t len_k(int64_t b) const;
  int64_t row_q(int64_t b, int64_t m) const;
  int64_t row_k(int64_t b, int64_t n) const;
  int64_t noise_heads() const { return spec.noise_heads == 0 ? spec.heads : spec.noise_heads; }
  int64_t noise_head(int64_t h) const { return h / (spec.heads / noise_heads()); }
  int64_t kv_head(int64_t h) const { return h / (spec.heads / spec.kv_heads); }
  int64_t lambda_index(int64_t b, int64_t m, int64_t h) const;
  int64_t mask_index(int64_t b, int64_t h, int64_t m, int64_t n) const;

  Spec spec;
  Dtype dtype;
  Dtype accumulator;
  Values values;

 private:
  void draw_indices(Rng& rng);
  void draw_mask(Rng& rng);
  void build_tensors();
  void store_mask();

  Tensor q1_, q2_, k1_, k2_, v_, dout_;
  Tensor lambda_, norm_weight_, additive_;
  Dims mask_dims_{0, 0, 0, 0};
  Memory boolean_;
  Memory key_starts_, key_lengths_, cu_seqlens_q_, cu_seqlens_k_;
};

}  // namespace diffattn::testing
