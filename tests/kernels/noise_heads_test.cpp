// SPDX-License-Identifier: Apache-2.0
//
// Heads that share a noise head: against the oracle, against repeated noise heads, and with NaN.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/host/noise_sharing.h"
#include "tests/support/laws.h"
#include "tests/support/oracle.h"
#include "tests/support/threads.h"

namespace diffattn::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class NoiseHeads : public Law {};

TEST_P(NoiseHeads, RandomForward) {
  const uint64_t seed = run_seed() + 1000000;
  Tally tally{.yardstick = false};
  for (int64_t i = 0; i < scaled(300); ++i) {
    const Spec spec = with_noise_heads(random_spec(seed + static_cast<uint64_t>(i)));
    ASSERT_TRUE(check_forward(GetParam(), spec, tally)) << "DIFFATTN_TEST_SEED=" << run_seed();
  }
  EXPECT_EQ(tally.cases, scaled(300));
  EXPECT_LE(tally.error, kForwardMeanRatio * tally.naive_error);
}

TEST_P(NoiseHeads, RandomBackward) {
  const uint64_t seed = run_seed() + 1500000;
  Tally tally{.yardstick = false};
  for (int64_t i = 0; i < scaled(300); ++i) {
    const Spec spec = with_noise_heads(random_spec(seed + static_cast<uint64_t>(i)));
    ASSERT_TRUE(check_backward(GetParam(), spec, tally)) << "DIFFATTN_TEST_SEED=" << run_seed();
  }
  EXPECT_EQ(tally.cases, scaled(300));
  EXPECT_LE(tally.error, kBackwardMeanRatio * tally.naive_error);
}

/// Returns a case with several blocks of rows and several slabs of dk and dv.
Spec large_spec(uint64_t seed) {
  Spec spec;
  spec.seed = seed;
  spec.noise_heads = 2;
  spec.heads = 8;
  spec.kv_heads = 1 + static_cast<int64_t>(seed % 2);
  spec.seq_q = 150;
  spec.seq_k = 230;
  spec.head_dim = 16;
  spec.value_dim = 32;
  spec.causal = seed % 3 != 0;
  spec.norm = spec.norm_weight = seed % 2 == 0;
  spec.lambda_shape = LambdaShape::kPerToken;
  spec.save_o = seed % 4 == 1;
  return spec;
}

TEST_P(NoiseHeads, SeveralBlocksAndSlabs) {
  Tally tally;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_TRUE(check_forward(GetParam(), large_spec(seed), tally));
    EXPECT_TRUE(check_backward(GetParam(), large_spec(seed), tally));
  }
}

// More keys than the maps of a forward block hold, so that O1 and O2 are summed separately.
TEST_P(NoiseHeads, MoreKeysThanAMapHolds) {
  Spec spec;
  spec.noise_heads = 1;
  spec.heads = 3;
  spec.seq_k = 16600;
  spec.head_dim = spec.value_dim = 8;
  Tally tally{.yardstick = false};
  const ThreadCount one(1);
  for (const int64_t seq_q : {4, 12}) {  // independent heads, and heads that share map 2
    spec.seq_q = seq_q;
    for (const bool save_o : {false, true}) {
      spec.save_o = save_o;
      EXPECT_TRUE(check_forward(GetParam(), spec, tally));
    }
  }
}

TEST_P(NoiseHeads, FewRowsOfManyKeys) {
  Tally tally{.yardstick = false};
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Spec spec;
    spec.seed = seed;
    spec.batch = 2;
    spec.noise_heads = spec.kv_heads = 2;
    spec.heads = 8;
    spec.seq_q = 1 + static_cast<int64_t>(seed % 2);
    spec.seq_k = 700;
    spec.head_dim = 32;
    spec.value_dim = 64;
    spec.scale = spec.scale2 = 0.2;
    spec.causal = spec.key_lengths = spec.align_to_key_lengths = seed % 3 != 0;
    const ThreadCount threads(static_cast<int64_t>(seed % 2));
    EXPECT_TRUE(check_forward(GetParam(), spec, tally));
  }
}

/// Returns the case of `spec` in which every head has a copy of its noise head.
Case with_repeated_noise(const Case& shared, Spec spec) {
  spec.noise_heads = 0;
  Case repeated(spec, shared.dtype);
  const std::vector<double> from = shared.values.q2;
  repeated.values = shared.values;
  repeated.values.q2.resize(shared.values.q1.size());
  const int64_t width = spec.head_dim;
  for (int64_t i = 0; i < static_cast<int64_t>(repeated.values.q2.size()); ++i) {
    const int64_t row = i / (width * spec.heads), h = i / width % spec.heads;
    const int64_t noise = row * shared.noise_heads() + shared.noise_head(h);
    repeated.values.q2[i] = from[noise * width + i % width];
  }
  repeated.store();
  return repeated;
}

TEST_P(NoiseHeads, OutputHasTheBitsOfRepeatedNoiseHeads) {
  for_each_seed(21000, [&](uint64_t seed) {
    Spec spec = with_noise_heads(random_spec(seed));
    spec.query_layout = Layout::kBmhd;
    const Case shared = make(spec), repeated = with_repeated_noise(shared, spec);
    expect_same_bits(shared, out(shared), out(repeated));
  });
}

/// Returns a case of four heads per noise head, which share map 2 only if they have enough rows.
Spec spec_of_rows(int64_t rows) {
  Spec spec;
  spec.seed = static_cast<uint64_t>(rows);
  spec.kv_heads = 1 + rows % 2;
  spec.noise_heads = 2;
  spec.heads = 8;
  spec.seq_q = rows;
  spec.seq_k = 70;
  spec.head_dim = 16;
  spec.value_dim = 32;
  spec.causal = rows > 4;
  spec.norm = spec.norm_weight = rows % 4 == 1;
  spec.lambda_shape = LambdaShape::kPerToken;
  return spec;
}
constexpr int64_t kRowCounts[] = {1, 3, 4, 8, 12, 13, 20, 33, 48, 150};

TEST_P(NoiseHeads, AnyNumberOfRowsGivesTheBitsOfRepeatedNoiseHeads) {
  for (const int64_t rows : kRowCounts) {
    for (const bool save_o : {false, true}) {
      Spec spec = spec_of_rows(rows);
      spec.save_o = save_o;
      const Case shared = make(spec), repeated = with_repeated_noise(shared, spec);
      for (const int64_t count : {1, 3, 40}) {
        const ThreadCount threads(count);
        expect_same_bits(shared, out(shared), out(repeated));
      }
    }
  }
}

TEST_P(NoiseHeads, BackwardOfAnyNumberOfRows) {
  Tally tally{.yardstick = false};
  for (const int64_t rows : kRowCounts) {
    for (const bool save_o : {false, true}) {
      Spec spec = spec_of_rows(rows);
      spec.save_o = save_o;
      EXPECT_TRUE(check_backward(GetParam(), spec, tally));
    }
  }
}

// Two sequences, one of which has too few rows to share map 2.
TEST_P(NoiseHeads, PackedSequencesDecideAlone) {
  Spec spec = spec_of_rows(48);
  spec.varlen = true;
  spec.batch = 6;
  Tally tally{.yardstick = false};
  for (spec.seed = 0; spec.seed < 4; ++spec.seed) {
    EXPECT_TRUE(check_forward(GetParam(), spec, tally));
    EXPECT_TRUE(check_backward(GetParam(), spec, tally));
  }
}

TEST_P(NoiseHeads, ThreadCountsGiveTheSameBits) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Case c = make(large_spec(seed));
    std::vector<BackwardResult> results;
    for (const int64_t count : {1, 2, 3, 8}) {
      const ThreadCount threads(count);
      results.push_back(run_backward(backend(), c));
      for (const NamedGradient& gradient : kGradients) {
        ASSERT_TRUE(same_bits(results.back().*gradient.values, results[0].*gradient.values, {}))
            << gradient.name << " with " << count << " threads";
      }
    }
  }
}

TEST_P(NoiseHeads, NanInQ2ReachesTheHeadsThatShareIt) {
  Case c = make(large_spec(1));
  const std::vector<double> before = out(c);
  constexpr int64_t kRow = 40, kNoise = 1;
  c.values.q2[(kRow * c.noise_heads() + kNoise) * c.spec.head_dim] = kNan;
  c.store();
  const std::vector<double> after = out(c);
  for (int64_t i = 0; i < static_cast<int64_t>(after.size()); ++i) {
    const int64_t row = i / (c.spec.value_dim * c.spec.heads);
    const int64_t h = i / c.spec.value_dim % c.spec.heads;
    const bool affected = row == kRow && c.noise_head(h) == kNoise;
    ASSERT_TRUE(affected ? std::isnan(after[i]) : after[i] == before[i]) << "head " << h;
  }
}

TEST_P(NoiseHeads, NanInDoutReachesItsNoiseHead) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    Case c = make(large_spec(seed));
    const BackwardResult before = run_backward(backend(), c);
    constexpr int64_t kRow = 70, kHead = 5;
    c.values.dout[(kRow * c.spec.heads + kHead) * c.spec.value_dim] = kNan;
    c.store();
    const BackwardResult after = run_backward(backend(), c);
    const int64_t width = c.spec.head_dim;
    for (int64_t i = 0; i < static_cast<int64_t>(after.dq1.size()); ++i) {
      const bool affected = i / width == kRow * c.spec.heads + kHead;
      ASSERT_TRUE(affected ? std::isnan(after.dq1[i]) : after.dq1[i] == before.dq1[i]) << i;
    }
    for (int64_t i = 0; i < static_cast<int64_t>(after.dq2.size()); ++i) {
      const bool affected = i / width == kRow * c.noise_heads() + c.noise_head(kHead);
      ASSERT_TRUE(affected ? std::isnan(after.dq2[i]) : after.dq2[i] == before.dq2[i]) << i;
    }
  }
}

// p2 of a row that sees one key is 1 there, whatever q2 and k2 are.
TEST_P(NoiseHeads, RowsThatSeeOneKeyHaveNoGradientOfQ) {
  Spec spec = large_spec(0);
  spec.causal = true;
  spec.seq_k = spec.seq_q;
  spec.window = Window::last(1);
  const BackwardResult got = run_backward(backend(), make(spec));
  for (const auto* dq : {&got.dq1, &got.dq2}) {
    for (const double x : *dq) ASSERT_EQ(x, 0.0);
  }
}

/// Returns kv heads of `group` heads per noise head, with `rows` rows of each head.
std::vector<cpu::Head> kv_heads(int64_t count, int64_t group, int64_t rows) {
  cpu::Head head;
  head.rows = group * rows;
  head.seq.seq_q = rows;
  return std::vector<cpu::Head>(static_cast<size_t>(count), head);
}

// A shared block of four heads takes (6 * 4 + 2) D FLOP per pair and noise row, independent heads
// 8 D per row. Both pad their rows to whole strips.
TEST(NoiseSharing, HeadsShareUnlessThatIsMoreWork) {
  constexpr cpu::PairWork kForward{4, 3};
  const auto share = [&](int64_t rows, int strip_rows) {
    std::vector<cpu::Head> heads = kv_heads(1, 4, rows);
    cpu::share_noise_heads(heads, 4, kForward, strip_rows);
    return heads[0].share;
  };
  for (const int64_t rows : {1, 3, 4, 6, 9, 13, 15}) EXPECT_EQ(share(rows, 12), 1) << rows;
  for (const int64_t rows : {10, 12, 19, 24, 48, 128}) EXPECT_EQ(share(rows, 12), 4) << rows;
  for (const int64_t rows : {3, 8, 16, 24, 36}) EXPECT_EQ(share(rows, 32), 1) << rows;
  for (const int64_t rows : {25, 32, 64, 128}) EXPECT_EQ(share(rows, 32), 4) << rows;
}

TEST(NoiseSharing, ThreadsDoNotIdleForIt) {
  constexpr cpu::PairWork kForward{4, 3};
  const auto share = [&](int64_t count, int64_t rows, int64_t thread_count) {
    const ThreadCount threads(thread_count);
    std::vector<cpu::Head> heads = kv_heads(count, 4, rows);
    const int block_rows = cpu::share_noise_heads(heads, 4, kForward, 12, 48);
    return std::pair(heads[0].share, block_rows);
  };
  EXPECT_EQ(share(8, 128, 1), std::pair(int64_t{4}, 48));
  EXPECT_EQ(share(8, 128, 24), std::pair(int64_t{4}, 48));
  EXPECT_EQ(share(8, 128, 64), std::pair(int64_t{4}, 12));  // 24 blocks of 48 rows, 88 of 12
  EXPECT_EQ(share(8, 48, 64), std::pair(int64_t{4}, 12));
  EXPECT_EQ(share(8, 128, 44), std::pair(int64_t{1}, 48));  // 88 independent blocks: two rounds
  EXPECT_EQ(share(1, 3, 4).first, 1);
}

INSTANTIATE_TEST_SUITE_P(Kernels, NoiseHeads, ::testing::ValuesIn(targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
