// SPDX-License-Identifier: Apache-2.0
//
// Forward and backward against the oracle, over a grid of head dimensions, value widths, lengths
// and masking options, and over random shapes and options.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/check.h"
#include "tests/support/threads.h"
#include "tests/support/tolerance.h"

namespace diffattn::testing {
namespace {

constexpr int64_t kHeadDims[] = {8, 16, 32, 40, 64, 96, 128, 256};

struct Lengths {
  int64_t seq_q, seq_k;
};
// Lengths of 1 and 2 and around the tile sizes 8, 16, 32 and 64, with fewer, as many and more rows
// than columns.
constexpr Lengths kLengths[] = {{1, 1},   {2, 2},   {1, 9},   {7, 8},  {15, 15}, {16, 16},
                                {17, 17}, {16, 31}, {33, 15}, {3, 64}, {9, 65},  {32, 33}};

constexpr int64_t kVisibilities = 9;
constexpr int kMostFailures = 3;  // enough to see a pattern

void set_visibility(Spec& spec, int64_t which, Rng& rng) {
  switch (which) {
    case 0: break;
    case 1: spec.causal = true; break;
    case 2:
      spec.causal = rng.chance(0.5);  // no effect: such a window is causal
      spec.window = Window::last(rng.pick<int64_t>({1, 2, 3, 7, 8, 16, spec.seq_k}));
      break;
    case 3:
      spec.key_lengths = true;
      spec.causal = rng.chance(0.5);
      break;
    case 4: spec.key_starts = spec.causal = true; break;
    case 5:
      spec.varlen = true;
      spec.causal = rng.chance(0.7);
      break;
    case 6:
      spec.mask = rng.chance(0.5) ? MaskKind::kBoolean : MaskKind::kAdditive;
      spec.mask_dtype = rng.pick({Dtype::kFloat32, Dtype::kBFloat16});
      spec.mask_batch = rng.chance(0.5);
      spec.mask_head = rng.chance(0.5);
      spec.mask_row = spec.mask_column = true;
      spec.causal = rng.chance(0.3);
      break;
    case 7:
      spec.window = Window::beside(rng.pick<int64_t>({-1, 0, 1, 7, 16}),
                                   rng.pick<int64_t>({-1, 0, 1, 2, 8, 15, spec.seq_q}));
      spec.varlen = rng.chance(0.3);
      spec.causal = rng.chance(0.1);
      break;
    default:
      spec.causal = spec.key_lengths = spec.align_to_key_lengths = true;
      if (rng.chance(0.3)) spec.window = Window::last(rng.integer(1, spec.seq_k));
  }
}

/// Sets the options of a published variant: V1 (separate keys, head norm), V2 (shared keys, lambda
/// per token), or ordinary attention (lambda 0).
void set_variant(Spec& spec, int64_t which, Rng& rng) {
  switch (which) {
    case 0:
      spec.norm = true;
      spec.norm_weight = rng.chance(0.5);
      spec.out_scale = rng.uniform(0.2, 0.8);
      spec.lambda_shape = rng.pick({LambdaShape::kScalar, LambdaShape::kPerHead});
      spec.lambda_low = 0.0;
      spec.lambda_high = 1.0;
      break;
    case 1:
      spec.shared_k = true;
      spec.lambda_shape = LambdaShape::kPerToken;
      spec.lambda_low = 0.0;
      spec.lambda_high = 1.0;
      break;
    default: spec.lambda_low = spec.lambda_high = 0.0;
  }
}

struct Point {
  int64_t head_dim, value_factor;
  Lengths lengths;
  int64_t visibility, round;
};

Spec grid_spec(const Point& point) {
  Spec spec;
  spec.seed = static_cast<uint64_t>(
      ((((point.round * 16 + point.visibility) * 128 + point.lengths.seq_q) * 128 +
        point.lengths.seq_k) *
           4 +
       point.value_factor) *
          512 +
      point.head_dim);
  Rng rng(spec.seed);
  spec.seq_q = point.lengths.seq_q;
  spec.seq_k = point.lengths.seq_k;
  spec.head_dim = point.head_dim;
  spec.value_dim = point.head_dim * point.value_factor;
  spec.scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  spec.scale2 = rng.chance(0.8) ? spec.scale : spec.scale / 2;
  // Groups of 1, 2, 4 or 8 heads, fewer if the case gets large; an average case takes a
  // millisecond.
  const int64_t head_work = spec.seq_q * spec.seq_k * (spec.head_dim + spec.value_dim);
  int64_t group = rng.pick<int64_t>({1, 2, 4, 8});
  while (group > 1 && group * head_work > 200000) group /= 2;
  spec.kv_heads = group * head_work < 50000 ? 2 : 1;
  spec.heads = group * spec.kv_heads;
  spec.batch = spec.heads * head_work < 100000 || point.visibility >= 3 ? 2 : 1;
  set_visibility(spec, point.visibility, rng);
  set_variant(spec, rng.integer(0, 2), rng);
  const Layout layout = rng.pick({Layout::kBmhd, Layout::kBhmd, Layout::kSlice});
  spec.query_layout = spec.key_layout = spec.value_layout = spec.out_layout = layout;
  spec.save_o = rng.chance(0.3);
  return spec;
}

class Grid : public ::testing::TestWithParam<Target> {
 protected:
  using Check = bool (*)(const Target&, const Spec&, Tally&);

  void run(Check check, int64_t value_factor, int64_t every, int64_t rounds) {
    int64_t index = 0;
    // At a test scale below 1/4, which is one round, skip points. An odd step still reaches every
    // visibility.
    every *= std::max<int64_t>(1, 100 / scaled(400)) | 1;
    for (const int64_t head_dim : kHeadDims) {
      for (const Lengths lengths : kLengths) {
        for (int64_t visibility = 0; visibility < kVisibilities; ++visibility) {
          for (int64_t round = 0; round < rounds; ++round) {
            if (index++ % every != 0) continue;
            const Spec spec = grid_spec({head_dim, value_factor, lengths, visibility, round});
            if (!check(GetParam(), spec, tally_) && ++failures_ == kMostFailures)
              FAIL() << "stopped";
          }
        }
      }
    }
    finish();
  }

  void finish() {
    ASSERT_GT(tally_.cases, 0) << "the backend took no case at all";
    RecordProperty("cases", std::to_string(tally_.cases));
    RecordProperty("worst_share_of_bound", std::to_string(tally_.worst_share));
    if (tally_.naive_error == 0.0) return;
    RecordProperty("mean_error_over_naive", std::to_string(tally_.error / tally_.naive_error));
  }

  Tally tally_;
  int failures_ = 0;
};

TEST_P(Grid, ForwardValuesAsWideAsKeys) {
  run(check_forward, 1, 1, scaled(4));
  // Luck averages out over thousands of cases, so this bound needs no extra unit in the last place.
  EXPECT_LE(tally_.error, kForwardMeanRatio * tally_.naive_error);
}

TEST_P(Grid, ForwardValuesTwiceAsWide) {
  run(check_forward, 2, 1, scaled(4));
  EXPECT_LE(tally_.error, kForwardMeanRatio * tally_.naive_error);
}

TEST_P(Grid, BackwardValuesAsWideAsKeys) {
  run(check_backward, 1, 3, scaled(4));
  EXPECT_LE(tally_.error, kBackwardMeanRatio * tally_.naive_error);
}

TEST_P(Grid, BackwardValuesTwiceAsWide) {
  run(check_backward, 2, 3, scaled(4));
  EXPECT_LE(tally_.error, kBackwardMeanRatio * tally_.naive_error);
}

// Decoding: at most eight rows per kv head, and keys for up to three tasks.
TEST_P(Grid, FewRowsOfManyKeys) {
  for (int64_t i = 0; i < scaled(40); ++i) {
    Spec spec;
    spec.seed = static_cast<uint64_t>(i) + 900000;
    Rng rng(spec.seed);
    spec.batch = rng.integer(1, 2);
    spec.kv_heads = rng.integer(1, 3);
    spec.heads = spec.kv_heads * rng.pick<int64_t>({1, 2, 4, 8});
    spec.seq_q = rng.integer(1, 8 / (spec.heads / spec.kv_heads));
    spec.seq_k = rng.integer(30, 1200);
    spec.head_dim = rng.pick<int64_t>({24, 32, 64, 96});
    spec.value_dim = spec.head_dim * rng.integer(1, 2);
    spec.scale = spec.scale2 = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
    set_visibility(spec, i % kVisibilities, rng);
    set_variant(spec, rng.integer(0, 2), rng);
    spec.key_layout = spec.value_layout = rng.pick({Layout::kBmhd, Layout::kBhmd, Layout::kSlice});
    // Every other case runs on one thread, which decodes interleaved heads together.
    const ThreadCount threads(i % 2);
    if (!check_forward(GetParam(), spec, tally_) && ++failures_ == kMostFailures)
      FAIL() << "stopped";
  }
  finish();
}

// Wider than D = 64, where AMX uses larger blocks of rows.
TEST_P(Grid, BackwardOfWideHeads) {
  Spec spec;
  spec.seed = 910000;
  spec.seq_q = 300;
  spec.seq_k = 330;
  spec.head_dim = 80;
  spec.value_dim = 160;
  spec.scale = spec.scale2 = 0.1;
  spec.causal = true;
  EXPECT_TRUE(check_backward(GetParam(), spec, tally_));
  finish();
}

// Every run draws and prints a fresh seed, so that over time the tests cover more than a fixed list
// would. A failure names the seed of its case, and DIFFATTN_TEST_SEED repeats a run.
TEST_P(Grid, RandomForward) {
  const uint64_t seed = run_seed();
  tally_.yardstick = false;
  for (int64_t i = 0; i < scaled(750); ++i) {
    const bool ok = check_forward(GetParam(), random_spec(seed + static_cast<uint64_t>(i)), tally_);
    ASSERT_TRUE(ok) << "DIFFATTN_TEST_SEED=" << seed;
  }
  finish();
  EXPECT_LE(tally_.error, kForwardMeanRatio * tally_.naive_error);
}

TEST_P(Grid, RandomBackward) {
  const uint64_t seed = run_seed() + 500000;
  tally_.yardstick = false;
  for (int64_t i = 0; i < scaled(500); ++i) {
    const bool ok =
        check_backward(GetParam(), random_spec(seed + static_cast<uint64_t>(i)), tally_);
    ASSERT_TRUE(ok) << "DIFFATTN_TEST_SEED=" << run_seed();
  }
  finish();
  EXPECT_LE(tally_.error, kBackwardMeanRatio * tally_.naive_error);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Grid, ::testing::ValuesIn(targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
