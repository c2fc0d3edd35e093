// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "diffattn/kernels/params.h"
#include "tests/support/rng.h"
#include "tests/support/tensor.h"

namespace diffattn::testing {

/// The shape of lambda before broadcasting: [1], [H] or [B, M, H].
enum class LambdaShape : uint8_t { kScalar, kPerHead, kPerToken };

/// Everything that determines a case except its element type. Two cases of one spec in different
/// types hold the same numbers, each rounded to its type.
struct Spec {
  uint64_t seed = 1;

  int64_t batch = 1, heads = 1, kv_heads = 1;
  int64_t noise_heads = 0;       // of q2; 0 = heads
  int64_t seq_q = 1, seq_k = 1;  // varlen: upper limits of the drawn lengths
  int64_t head_dim = 8, value_dim = 8;

  double scale = 0.5, scale2 = 0.5;
  LambdaShape lambda_shape = LambdaShape::kPerHead;
  double lambda_low = -0.5, lambda_high = 1.5;
  double logit_spread = 1.0;  // multiplies q1 and q2
  bool shared_k = false;      // k2 is k1's memory
  bool shared_q = false;      // q2 is q1's memory

  bool causal = false;
  Window window = {};
  bool key_starts = false, key_lengths = false;  // if true, drawn per batch entry
  bool align_to_key_lengths = false;
  bool varlen = false;

  MaskKind mask = MaskKind::kNone;
  Dtype mask_dtype = Dtype::kFloat32;
  bool mask_batch = false, mask_head = false, mask_row = false, mask_column = false;
  bool mask_transposed = false;  // rows adjacent in memory instead of columns
  double mask_hidden = 0.3;      // share of hidden entries

  bool norm = false, norm_weight = false;
  double norm_eps = 1e-5;
  double out_scale = 1.0;

  Layout query_layout = Layout::kBmhd;
  Layout key_layout = Layout::kBmhd;
  Layout value_layout = Layout::kBmhd;
  Layout out_layout = Layout::kBmhd;  // of out, o, o2, dout and all gradients
  int64_t offset = 0;                 // elements by which every tensor is misaligned
  bool save_o = false;                // forward saves o and o2, backward reads them
  bool save_lse = true;               // backward reads lse1 and lse2
};

/// Returns one line from which the case can be rebuilt.
std::string to_string(const Spec& spec);

/// Size limits that keep a random case at about a millisecond.
struct SizeLimits {
  int64_t seq = 40;
  int64_t head_dim = 40;
  int64_t value_dim = 48;
  int64_t work = 400000;  // batch * heads * seq_q * seq_k * (head_dim + value_dim)
};

/// Returns a random valid combination of shapes and options.
Spec random_spec(uint64_t seed, const SizeLimits& limits = {});

/// Returns a spec whose heads share noise heads, in groups that the seed determines. Its mask has
/// no head axis.
Spec with_noise_heads(Spec spec);

/// Returns the seed of this run's random cases: DIFFATTN_TEST_SEED, or a fresh one. Prints it once.
uint64_t run_seed();
/// Returns `count` times DIFFATTN_TEST_SCALE (1 if unset), at least 1: for longer or shorter runs.
int64_t scaled(int64_t count);

}  // namespace diffattn::testing
