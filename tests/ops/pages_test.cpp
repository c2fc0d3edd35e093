// SPDX-License-Identifier: Apache-2.0
//
// Decoding on a paged KV cache gives the bits of a contiguous one, for every table.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "diffattn/kernels/error.h"
#include "diffattn/ops.h"
#include "tests/ops/backends.h"

namespace diffattn::testing::pages_test {
namespace {

using torch::Tensor;

constexpr int64_t kBatch = 3, kKvHeads = 2, kWidth = 32, kValueWidth = 64, kColumns = 1280;

struct Case {
  torch::ScalarType type = torch::kFloat32;
  int64_t page_size = 64, group = 2, rows = 1;
  int64_t share = 1;  // heads per noise head
  std::optional<int64_t> window = {};
  bool one_key = false;
};

/// A contiguous cache, and the same one in pages that `table` lists.
struct Caches {
  Tensor q1, q2, k1, k2, v, lambda, lengths;
  Tensor pool_k1, pool_k2, pool_v, table;

  Caches(const Case& c, torch::Device device, uint32_t seed) {
    torch::manual_seed(seed);
    const auto make = [&](std::vector<int64_t> sizes) {
      return torch::randn(sizes).to(c.type).to(device);
    };
    const int64_t heads = kKvHeads * c.group;
    q1 = make({kBatch, c.rows, heads, kWidth}),
    q2 = make({kBatch, c.rows, heads / c.share, kWidth});
    k1 = make({kBatch, kColumns, kKvHeads, kWidth});
    k2 = c.one_key ? k1 : make({kBatch, kColumns, kKvHeads, kWidth});
    v = make({kBatch, kColumns, kKvHeads, kValueWidth});
    lambda = torch::full({}, 0.3).to(device);
    lengths = torch::tensor({kColumns, int64_t{700}, c.rows}).to(device);

    const int64_t columns = kColumns / c.page_size, count = kBatch * columns + 5;
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    order.resize(static_cast<size_t>(kBatch * columns));
    const Tensor pages = torch::tensor(order).view({kBatch, columns});
    const auto pooled = [&](const Tensor& rows) {  // what no row sees is NaN
      Tensor pool = torch::full({count, c.page_size, kKvHeads, rows.size(-1)}, NAN, c.type);
      for (int64_t b = 0; b < kBatch; ++b) {
        for (int64_t n = 0; n < lengths[b].item<int64_t>(); ++n) {
          pool[pages[b][n / c.page_size].item<int64_t>()][n % c.page_size] = rows[b][n].cpu();
        }
      }
      return pool.to(device);
    };
    pool_k1 = pooled(k1);
    pool_k2 = c.one_key ? pool_k1 : pooled(k2);
    pool_v = pooled(v);
    table = pages.clone();
    for (int64_t b = 0; b < kBatch; ++b) {  // entries behind the last key may be anything
      const int64_t used = (lengths[b].item<int64_t>() + c.page_size - 1) / c.page_size;
      table[b].slice(0, used).fill_(1 << 30);
    }
    table = table.to(device);
  }

  AttentionOptions options(const Case& c) const {
    return AttentionOptions().key_lengths(lengths).window(c.window).norm_eps(1e-5).out_scale(0.8);
  }
  Tensor contiguous(const Case& c) const { return decode(q1, q2, k1, k2, v, lambda, options(c)); }
  Tensor paged(const Case& c) const {
    return decode(q1, q2, pool_k1, pool_k2, pool_v, lambda, options(c), table);
  }
};

void expect_same_bits(torch::Device device, torch::ScalarType type) {
  uint32_t seed = 1;
  for (const Case& c :
       {Case{.page_size = 64}, Case{.page_size = 128, .rows = 2},
        Case{.page_size = 256, .group = 4, .window = 300}, Case{.page_size = 16},
        Case{.page_size = 64, .group = 1, .one_key = true},
        Case{.page_size = 64, .group = 8, .rows = 3}, Case{.page_size = 64, .group = 4, .share = 4},
        Case{.page_size = 128, .group = 4, .rows = 2, .share = 2, .window = 300},
        Case{.page_size = 16, .group = 8, .rows = 5, .share = 4}}) {
    Case typed = c;
    typed.type = type;
    const Caches caches(typed, device, ++seed);
    const Tensor want = caches.contiguous(typed), got = caches.paged(typed);
    EXPECT_TRUE(want.isfinite().all().item<bool>());
    EXPECT_TRUE(torch::equal(got, want)) << "page size " << c.page_size << ", " << type;
    Caches copies = caches;
    copies.q2 = caches.q2.repeat_interleave(c.share, 2);
    EXPECT_TRUE(torch::equal(copies.paged(typed), got)) << c.share << " heads share, " << type;
  }
}

class Pages : public ::testing::TestWithParam<CpuBackend> {
 protected:
  void SetUp() override { limit_backend(GetParam().name); }
  void TearDown() override { limit_backend(""); }
};

TEST_P(Pages, EveryTableGivesTheSameBits) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    expect_same_bits(torch::kCPU, type);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Pages, ::testing::ValuesIn(available_cpu_backends()),
                         backend_name);

TEST(PagesOnGpu, EveryTableGivesTheSameBits) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    expect_same_bits(torch::kCUDA, type);
  }
}

TEST(PagesRefused, NamesTheArgument) {
  const Case c;
  const Caches caches(c, torch::kCPU, 9);
  const auto message = [&](const Tensor& table, const AttentionOptions& options) -> std::string {
    try {
      decode(caches.q1, caches.q2, caches.pool_k1, caches.pool_k2, caches.pool_v, caches.lambda,
             options, table);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto expect = [&](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const AttentionOptions options = caches.options(c);
  expect(message(caches.table, AttentionOptions()), "no key_lengths");
  expect(message(caches.table.to(torch::kFloat32), options), "int32 or int64");
  expect(message(caches.table[0], options), "shape [3, pages of a sequence]");
  Tensor outside = caches.table.clone();
  outside[1][2] = caches.pool_k1.size(0);
  expect(message(outside, options), "at [1, 2]");
  outside[1][2] = -1;
  expect(message(outside, options), "got -1 at [1, 2]");
  expect(message(caches.table.slice(1, 0, 2), options), "key_lengths");
}

}  // namespace
}  // namespace diffattn::testing::pages_test
