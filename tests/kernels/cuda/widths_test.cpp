// SPDX-License-Identifier: Apache-2.0
//
// Every width that kernels are compiled for and widths around them, which are padded, and random
// options at sizes of several tiles.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/cuda/backend.h"
#include "tests/support/check.h"

namespace diffattn::testing {
namespace {

constexpr int64_t kHeadDims[] = {1, 8, 20, 32, 33, 64, 72, 96, 128, 136, 256};

class CudaWidths : public ::testing::TestWithParam<Target> {};

/// Returns a spec of several tiles, which covers loops, the partial last tile and the diagonal.
Spec several_tiles(int64_t head_dim, int64_t value_dim) {
  Spec spec;
  spec.seed = static_cast<uint64_t>(head_dim * 1000 + value_dim);
  spec.batch = spec.heads = 2;
  spec.seq_q = 150;
  spec.seq_k = 170;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim;
  spec.scale = spec.scale2 = 1.0 / std::sqrt(static_cast<double>(head_dim));
  spec.causal = true;
  spec.norm = spec.norm_weight = true;
  return spec;
}

TEST_P(CudaWidths, Forward) {
  Tally tally;
  for (const int64_t d : kHeadDims) {
    for (const int64_t dv : {d, std::min<int64_t>(2 * d, 256)}) {
      Spec spec = several_tiles(d, dv);
      spec.save_o = true;
      if (!check_forward(GetParam(), spec, tally)) return;
    }
  }
  std::printf("cases %ld, worst share of a bound %.2f, mean error / naive %.2f\n",
              static_cast<long>(tally.cases), tally.worst_share, tally.error / tally.naive_error);
}

TEST_P(CudaWidths, Backward) {
  Tally tally;
  for (const int64_t d : kHeadDims) {
    for (const int64_t dv : {d, std::min<int64_t>(2 * d, 256)}) {
      for (const bool save_o : {false, true}) {
        Spec spec = several_tiles(d, dv);
        spec.save_o = save_o;
        if (!check_backward(GetParam(), spec, tally)) return;
      }
    }
  }
  std::printf("cases %ld, worst share of a bound %.2f, mean error / naive %.2f\n",
              static_cast<long>(tally.cases), tally.worst_share, tally.error / tally.naive_error);
}

/// Returns specs with masks of every type, with unaligned rows and transposed; some hide whole
/// tiles.
std::vector<Spec> masked_specs() {
  constexpr std::pair<int64_t, int64_t> kWidths[] = {
      {64, 128}, {32, 64}, {128, 128}, {64, 64}, {128, 256}};
  std::vector<Spec> specs;
  const auto add = [&](MaskKind kind, Dtype dtype, int64_t seq_k, bool transposed, double hidden) {
    const auto& [d, dv] = kWidths[specs.size() % std::size(kWidths)];
    const size_t round = specs.size() / std::size(kWidths);
    Spec spec = several_tiles(d, dv);
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.seq_k = seq_k;
    spec.causal = specs.size() % 3 == 0;
    spec.mask = kind;
    spec.mask_dtype = dtype;
    spec.mask_batch = round % 2 == 0;
    spec.mask_head = round / 2 % 2 == 0 || seq_k % 2 == 1;
    spec.mask_row = hidden < 0.95;  // else all rows share their hidden columns
    spec.mask_column = true;
    spec.mask_transposed = transposed;
    spec.mask_hidden = hidden;
    specs.push_back(spec);
  };
  for (const bool transposed : {false, true}) {
    for (const double hidden : {0.3, 0.95}) {
      for (const int64_t seq_k : {170, 171, 192}) {
        add(MaskKind::kBoolean, Dtype::kFloat32, seq_k, transposed, hidden);
      }
    }
    for (const Dtype dtype :
         {Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16}) {
      add(MaskKind::kAdditive, dtype, 171, transposed, 0.3);
    }
  }
  return specs;
}

/// Expects that all calls since the routes were cleared used tensor cores, if the GPU can run these
/// kernels.
void expect_matrix_kernels() {
  if (!has_float_matrix_kernels()) return;
  for (auto* const routes : {&forward_routes(), &backward_routes()}) {
    EXPECT_GT((*routes)["tf32"], 0);
    EXPECT_EQ((*routes)["simt"], 0);
  }
}

/// Masks of all kinds; widths 64 and 128 have sm90 kernels.
TEST_P(CudaWidths, Masks) {
  Tally tally;
  forward_routes().clear();
  backward_routes().clear();
  const std::vector<Spec> specs = masked_specs();
  const auto all = static_cast<int64_t>(specs.size());
  const int64_t count = std::clamp<int64_t>(scaled(all), 5, all);  // 5 cover both kinds of mask
  for (int64_t i = 0; i < count; ++i) {
    Spec spec = specs[i * all / count];
    if (!check_forward(GetParam(), spec, tally)) return;
    spec.norm = spec.norm_weight = false;
    for (const bool any_order : {false, true}) {
      backward_in_any_order() = any_order;
      const bool agrees = check_backward(GetParam(), spec, tally);
      backward_in_any_order() = false;
      if (!agrees) return;
    }
  }
  if (GetParam().dtype != Dtype::kFloat32) {
    if (usable_capability() == 90) {
      EXPECT_GT(backward_routes()["sm90"], 0);
    }
  } else {
    expect_matrix_kernels();
  }
}

/// Few rows against many keys: the kernels split the keys and combine partial results.
TEST_P(CudaWidths, Decode) {
  Tally tally{.yardstick = false};
  const uint64_t seed = run_seed() ^ 0xdec;
  for (int64_t i = 0; i < scaled(50); ++i) {
    Rng rng(seed + static_cast<uint64_t>(i));
    Spec spec = random_spec(seed + static_cast<uint64_t>(i));
    spec.head_dim = rng.pick<int64_t>({24, 64, 64, 80, 128});
    spec.value_dim = rng.pick<int64_t>({spec.head_dim, 2 * spec.head_dim, 50});
    spec.scale = spec.scale2 = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
    spec.batch = rng.integer(1, 2);
    spec.seq_q = rng.pick<int64_t>({1, 1, 2, 5, 16});
    spec.seq_k = rng.pick<int64_t>({1024, 1025, 1300, 2100});
    if (i % 6 == 5) {  // more thread blocks than the GPU runs at once
      spec.batch = 48, spec.seq_q = 1, spec.seq_k = rng.integer(1024, 1100);
    }
    if (spec.window != Window{}) spec.window = Window::last(rng.integer(0, spec.seq_k));
    if (!check_forward(GetParam(), spec, tally)) return;
  }
}

/// Returns a spec with random options at the widths of real models.
Spec wide_spec(uint64_t seed) {
  SizeLimits limits;
  limits.seq = 200;
  limits.work = 4000000;
  Spec spec = random_spec(seed, limits);
  Rng rng(seed ^ 0x31de);
  const double unit = spec.scale * std::sqrt(static_cast<double>(spec.head_dim));
  const double ratio = spec.scale2 / spec.scale;
  spec.head_dim = rng.pick<int64_t>({16, 32, 40, 64, 64, 64, 72, 96, 128, 128});
  spec.value_dim =
      rng.pick<int64_t>({spec.head_dim, 2 * spec.head_dim, 2 * spec.head_dim, 48, 136});
  spec.scale = unit / std::sqrt(static_cast<double>(spec.head_dim));
  spec.scale2 = ratio * spec.scale;
  return spec;
}

TEST_P(CudaWidths, RandomForward) {
  Tally tally{.yardstick = false};
  const uint64_t seed = run_seed();
  for (int64_t i = 0; i < scaled(100); ++i) {
    if (!check_forward(GetParam(), wide_spec(seed + static_cast<uint64_t>(i)), tally)) return;
  }
}

TEST_P(CudaWidths, RandomBackward) {
  Tally tally{.yardstick = false};
  const uint64_t seed = run_seed() ^ 0xbac;
  for (int64_t i = 0; i < scaled(60); ++i) {
    if (!check_backward(GetParam(), wide_spec(seed + static_cast<uint64_t>(i)), tally)) return;
  }
}

class CudaFloat32 : public ::testing::TestWithParam<Target> {};

/// Tests the kernels without tensor cores, which the tf32 kernels would otherwise replace.
TEST_P(CudaFloat32, Simt) {
  Tally tally;
  const CapabilityLimit limit(70);
  forward_routes().clear();
  backward_routes().clear();
  for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{1, 1}, {20, 40}, {64, 128}, {128, 256}}) {
    for (const Window& window : {Window{}, Window::last(70), Window{20, 90}}) {
      Spec spec = several_tiles(d, dv);
      spec.heads = 4;
      spec.kv_heads = 2;
      spec.window = window;
      if (!check_forward(GetParam(), spec, tally)) break;
      if (!check_backward(GetParam(), spec, tally)) break;
    }
  }
  EXPECT_EQ(forward_routes()["tf32"] + backward_routes()["tf32"], 0);
  EXPECT_GE(forward_routes()["simt"], 12);
  EXPECT_GE(backward_routes()["simt"], 12);
}

/// Finite numbers that are too large to split into two tf32 parts. A thread block that meets one
/// runs again on a path without the split. The factors of each such number are 0, so that all
/// results are finite.
TEST_P(CudaFloat32, LargeNumbersThatCannotBeSplit) {
  Tally tally{.yardstick = false};
  forward_routes().clear();
  backward_routes().clear();
  constexpr int64_t kSeq = 150, kColumn = 3, kOther = 9;
  for (const double large : {0x1p114, -0x1p118}) {
    for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{64, 128}, {96, 136}, {128, 256}}) {
      Spec spec = several_tiles(d, dv);
      spec.batch = spec.heads = spec.kv_heads = 1;
      spec.seq_q = spec.seq_k = kSeq;
      spec.norm = spec.norm_weight = false;
      Case c(spec, GetParam().dtype);
      const auto set = [](std::vector<double>& rows, int64_t width, int64_t column, double x) {
        for (int64_t row = 0; row < kSeq; ++row) rows[row * width + column] = x;
      };
      set(c.values.q1, d, kColumn, 0.0), set(c.values.k2, d, kOther, 0.0);
      set(c.values.dout, dv, kColumn, 0.0), set(c.values.v, dv, kOther, 0.0);
      for (const int64_t row : {5, 70, 149}) {
        c.values.k1[row * d + kColumn] = c.values.q2[row * d + kOther] = large;
        c.values.v[row * dv + kColumn] = c.values.dout[row * dv + kOther] = large;
      }
      c.store();
      if (!check_forward(GetParam(), c, tally)) return;
      if (!check_backward(GetParam(), c, tally)) return;
    }
  }
  expect_matrix_kernels();
}

/// Thread blocks that meet a NaN also run again.
TEST_P(CudaFloat32, NotFiniteReachesOnlyThoseWhoSeeIt) {
  forward_routes().clear();
  backward_routes().clear();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  std::vector<int64_t> places{40, 0, 17, 63, 64, 127, 149};
  places.resize(std::min(places.size(), static_cast<size_t>(scaled(7))));
  for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{64, 128}, {96, 136}, {128, 256}}) {
    Spec spec = several_tiles(d, dv);
    spec.batch = spec.heads = spec.kv_heads = 1;
    spec.seq_q = spec.seq_k = 150;
    spec.norm = spec.norm_weight = false;
    const Case whole(spec, GetParam().dtype);
    const BackwardResult before = run_backward(*GetParam().backend, whole);
    for (const int64_t at : places) {
      Case keys(spec, GetParam().dtype);  // rows from `at` on see the NaN
      keys.values.v[at * dv + dv - 1] = keys.values.k2[at * d] = kNan;
      keys.store();
      const BackwardResult of_keys = run_backward(*GetParam().backend, keys);
      Case queries(spec, GetParam().dtype);  // row `at` sees the keys up to `at`
      queries.values.dout[at * dv + dv - 1] = kNan;
      queries.store();
      const BackwardResult of_queries = run_backward(*GetParam().backend, queries);
      for (int64_t row = 0; row < 150; ++row) {
        for (int64_t column = 0; column < d; ++column) {
          const int64_t i = row * d + column;
          ASSERT_TRUE(row < at ? of_keys.dq1[i] == before.dq1[i] : std::isnan(of_keys.dq1[i]))
              << "dq1 of row " << row << " from key " << at << ": " << of_keys.dq1[i];
          ASSERT_TRUE(row > at ? of_queries.dk2[i] == before.dk2[i] : std::isnan(of_queries.dk2[i]))
              << "dk2 of key " << row << " from row " << at << ": " << of_queries.dk2[i];
        }
        for (int64_t column = 0; column < dv; ++column) {
          const int64_t i = row * dv + column;
          ASSERT_TRUE(row > at || column + 1 < dv ? of_queries.dv[i] == before.dv[i]
                                                  : std::isnan(of_queries.dv[i]))
              << "dv of key " << row << ", column " << column << " from row " << at << ": "
              << of_queries.dv[i];
        }
      }
    }
  }
  expect_matrix_kernels();
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaFloat32);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaFloat32, ::testing::ValuesIn(float_targets()), target_name);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaWidths);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaWidths, ::testing::ValuesIn(cuda_targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
