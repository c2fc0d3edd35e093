// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "diffattn/kernels/params.h"
#include "tests/support/rng.h"
#include "tests/support/tensor.h"

namespace diffattn::testing {

/// Which of lambda's dimensions are real; the others are broadcast.
enum class LambdaShape : uint8_t { kScalar, kPerHead, kPerToken };

/// Everything that determines a case but its element type. Two cases of one spec in different
/// types hold the same numbers, each rounded to its type.
struct Spec {
  uint64_t seed = 1;

  int64_t batch = 1, heads = 1, kv_heads = 1;
  int64_t seq_q = 1, seq_k = 1;  // varlen: the longest that is drawn
  int64_t head_dim = 8, value_dim = 8;

  double scale = 0.5, scale2 = 0.5;
  LambdaShape lambda_shape = LambdaShape::kPerHead;
  double lambda_low = -0.5, lambda_high = 1.5;
  double logit_spread = 1.0;  // multiplies q1 and q2
  bool shared_k = false;      // k2 is k1's memory
  bool shared_q = false;      // q2 is q1's memory

  bool causal = false;
  int64_t window = kNoWindow;
  bool key_starts = false, key_lengths = false;  // drawn per batch entry
  bool align_to_key_lengths = false;
  bool varlen = false;

  MaskKind mask = MaskKind::kNone;
  Dtype mask_dtype = Dtype::kFloat32;
  bool mask_batch = false, mask_head = false, mask_row = false, mask_column = false;
  bool mask_transposed = false;  // rows adjacent in memory instead of columns
  double mask_hidden = 0.3;      // share of entries that may not be seen

  bool norm = false, norm_weight = false;
  double norm_eps = 1e-5;
  double out_scale = 1.0;

  Layout query_layout = Layout::kBmhd;
  Layout key_layout = Layout::kBmhd;
  Layout value_layout = Layout::kBmhd;
  Layout out_layout = Layout::kBmhd;  // of out, o, o2, dout and all gradients
  int64_t offset = 0;                 // elements by which every tensor is misaligned
  bool save_o = false;                // give o and o2 to forward, and back to backward
  bool save_lse = true;               // give lse1 and lse2 to backward
};

/// One line that says how to build the case again.
std::string to_string(const Spec& spec);

/// Sizes that keep a random case around a millisecond.
struct SizeLimits {
  int64_t seq = 40;
  int64_t head_dim = 40;
  int64_t value_dim = 48;
  int64_t work = 400000;  // batch * heads * seq_q * seq_k * (head_dim + value_dim)
};

/// Any combination of shapes and options that is allowed, including empty and odd ones.
Spec random_spec(uint64_t seed, const SizeLimits& limits = {});

/// The seed of this run's random cases: DIFFATTN_TEST_SEED, or a fresh one, printed once.
uint64_t run_seed();
/// `count` times DIFFATTN_TEST_SCALE (1 when unset): longer runs before a release.
int64_t scaled(int64_t count);

}  // namespace diffattn::testing
