// SPDX-License-Identifier: Apache-2.0
//
// The number of threads, their earlier calls and the layout of heads in memory do not change a bit
// of the results. sequence_laws_test.cpp covers the batch position. Instruction sets may differ;
// each is compared with the oracle.

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/support/compare.h"
#include "tests/support/run.h"
#include "tests/support/threads.h"

namespace diffattn::testing {
namespace {

constexpr int64_t kCases = 36;                      // per backend and element type
constexpr int64_t kThreadCounts[] = {2, 3, 8, 16};  // compared with one thread

/// Returns everything that a backend computes, one tensor after the other.
std::vector<std::vector<double>> all_results(const Backend& backend, const Case& c,
                                             const std::vector<double>& dstats) {
  const ForwardResult forward = run_forward(backend, c);
  std::vector<std::vector<double>> all{forward.out, forward.lse1, forward.lse2};
  for (const BackwardResult& result :
       {run_backward(backend, c), run_stats_backward(backend, c, dstats)}) {
    for (const NamedGradient& gradient : kGradients) all.push_back(result.*gradient.values);
  }
  all.push_back(run_stats(backend, c, 1e-3));
  const int64_t rows = c.spec.seq_q, columns = c.spec.seq_k;
  if (rows > 0 && columns > 0) {
    all.push_back(run_map(backend, c, {0, rows, 0, columns, (rows + 2) / 3, (columns + 1) / 2}));
  }
  return all;
}

class Invariance : public ::testing::TestWithParam<Target> {};

TEST_P(Invariance, ThreadCountsGiveTheSameBits) {
  const Backend& backend = *GetParam().backend;
  for (int64_t seed = 0; seed < scaled(kCases); ++seed) {
    // One case in eight has several blocks of rows and several slabs of dk and dv.
    const bool large = seed % 8 == 0;
    const Spec spec =
        random_spec(static_cast<uint64_t>(seed) + 4100, {.seq = large ? 600 : 60,
                                                         .head_dim = 16,
                                                         .value_dim = 16,
                                                         .work = large ? 4000000 : 200000});
    const Case c(spec, GetParam().dtype);
    if (!backend.takes(c.problem())) continue;
    std::vector<double> dstats(c.rows_q() * spec.heads * kStatCount);
    Rng rng(static_cast<uint64_t>(seed));
    for (double& x : dstats) x = rounded(Dtype::kBFloat16, rng.normal());
    std::vector<std::vector<double>> want;
    {
      const ThreadCount one(1);
      want = all_results(backend, c, dstats);
    }
    for (const int64_t count : kThreadCounts) {
      const ThreadCount several(count);
      const std::vector<std::vector<double>> got = all_results(backend, c, dstats);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_TRUE(same_bits(got[i], want[i], {}))
            << "result " << i << " with " << count << " threads; " << c.describe();
      }
    }
  }
}

// A new thread has no scratch memory yet, and dk and dv of the first head have no elements. All
// outputs are NaN before the call.
TEST_P(Invariance, FirstCallOfAThreadWritesAllGradientsOfAHeadWithoutKeys) {
  const ThreadCount one(1);
  for (const bool varlen : {false, true}) {
    Case c({.batch = 2, .seq_q = 5, .seq_k = varlen ? 5 : 0, .varlen = varlen}, GetParam().dtype);
    if (varlen) {  // all keys belong to the second sequence
      c.spec.seq_k = c.rows_k();
      c.values.cu_seqlens_k = {0, 0, static_cast<int32_t>(c.rows_k())};
      c.store();
      ASSERT_GT(c.len_q(0), 0);
    }
    const std::vector<double> dstats(c.rows_q() * c.spec.heads * kStatCount, 0.7);
    BackwardResult of_out, of_stats;
    std::thread([&] { of_out = run_backward(*GetParam().backend, c); }).join();
    std::thread([&] { of_stats = run_stats_backward(*GetParam().backend, c, dstats); }).join();
    for (const BackwardResult& result : {of_out, of_stats}) {
      ASSERT_FALSE(result.dq1.empty());
      for (const NamedGradient& gradient : kGradients) {
        for (const double x : result.*gradient.values) {
          ASSERT_FALSE(std::isnan(x)) << gradient.name << "; " << c.describe();
        }
      }
    }
  }
}

/// Compares interleaved heads [B, N, H, D] with separate heads [B, H, N, D]. Uses one thread,
/// because several threads decode heads together only if there are enough tasks.
void expect_layouts_agree(const Target& target, Spec spec) {
  const ThreadCount one(1);
  std::vector<double> out[2];
  for (const Layout layout : {Layout::kBmhd, Layout::kBhmd}) {
    spec.key_layout = spec.value_layout = layout;
    const Case c(spec, target.dtype);
    out[layout == Layout::kBhmd] = run_forward(*target.backend, c).out;
  }
  ASSERT_TRUE(same_bits(out[1], out[0], {})) << to_string(spec);
}

TEST_P(Invariance, StatisticsOfOneVisibleKeyDoNotDependOnQueriesAndKeys) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Spec spec = random_spec(seed);
    spec.causal = true;
    spec.window = Window::last(1);
    const Case c(spec, GetParam().dtype);
    const auto count = static_cast<size_t>(c.rows_q() * spec.heads * kStatCount);
    const BackwardResult got =
        run_stats_backward(*GetParam().backend, c, std::vector<double>(count, 0.7));
    for (const auto* gradient : {&got.dq1, &got.dq2, &got.dk1, &got.dk2}) {
      for (const double x : *gradient) ASSERT_EQ(x, 0.0) << c.describe();
    }
  }
}

TEST_P(Invariance, DecodingReadsInterleavedHeadsAsItReadsThemApart) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(scaled(8)); ++seed) {
    Spec spec;
    spec.batch = 2;
    spec.kv_heads = seed % 2 == 0 ? 4 : 3;
    spec.heads = spec.kv_heads * (seed % 4 < 2 ? 1 : 2);
    // With groups of two heads, this gives four rows, which AMX tile registers take at D = 64.
    spec.seq_q = seed % 4 == 2 ? 2 : 1 + static_cast<int64_t>(seed % 3);
    spec.seq_k = 700 + static_cast<int64_t>(seed) * 37;  // two chunks of keys
    spec.head_dim = seed % 2 == 0 ? 64 : 24;
    spec.value_dim = 2 * spec.head_dim;
    spec.causal = spec.key_lengths = seed % 2 == 1;
    spec.seed = seed;
    ASSERT_NO_FATAL_FAILURE(expect_layouts_agree(GetParam(), spec));
  }
}

// Transposed q of eight wide rows is so large that there are four slots for six heads.
TEST_P(Invariance, DecodingOfMoreWideHeadsThanThereIsRoomFor) {
  Spec spec;
  spec.kv_heads = 6;
  spec.heads = 48;
  spec.seq_q = 1;
  spec.seq_k = 200;
  spec.head_dim = 256;
  spec.value_dim = 32;
  spec.scale = spec.scale2 = 1.0 / 16;
  expect_layouts_agree(GetParam(), spec);
}

/// Returns all targets except the reference, which has one thread and one way to read memory.
std::vector<Target> fused_targets() {
  std::vector<Target> list = targets();
  std::erase_if(list, [](const Target& target) {
    return target.backend->forward == cpu_backends().back().forward;
  });
  return list;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Invariance, ::testing::ValuesIn(fused_targets()), target_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Invariance);

}  // namespace
}  // namespace diffattn::testing
