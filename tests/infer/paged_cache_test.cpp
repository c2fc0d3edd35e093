// SPDX-License-Identifier: Apache-2.0
#include "infer/paged_cache.h"

#include <gtest/gtest.h>

#include <set>

#include "diffattn/kernels/error.h"

namespace diffattn::infer {
namespace {

using torch::Tensor;

constexpr CachedToken kToken{.kv_heads = 3, .keys = 2, .head_dim = 4, .value_dim = 8};

PagedCache make_cache() { return {2, kToken, 16, torch::kFloat32}; }

/// Reads column c of what layer `layer` caches for token n of a sequence.
float cached(const PagedCache& cache, int64_t layer, const std::vector<int32_t>& pages, int64_t n,
             int64_t head, int64_t c) {
  const auto view = cache.layer(layer);
  const auto* data = static_cast<const float*>(view.pages);
  return data[pages[static_cast<size_t>(n / 16)] * view.page_stride + head * view.head_stride +
              n % 16 * view.token_stride + c];
}

TEST(PagedCache, PagesAreTakenOnceAndReturn) {
  PagedCache cache = make_cache();
  EXPECT_TRUE(cache.reserve(5));
  EXPECT_FALSE(cache.reserve(5));
  const auto first = cache.take(3), second = cache.take(2);
  std::set<int32_t> all(first.begin(), first.end());
  all.insert(second.begin(), second.end());
  EXPECT_EQ(all, (std::set<int32_t>{1, 2, 3, 4, 5}));  // page 0 belongs to nobody
  EXPECT_THROW(cache.take(1), c10::Error);
  cache.share(first);
  cache.give_back(first);
  EXPECT_EQ(cache.free_pages(), 0);  // they have another owner
  cache.give_back(first);
  cache.give_back(second);
  EXPECT_EQ(cache.free_pages(), 5);
  EXPECT_EQ(cache.used_pages(), 0);
}

TEST(PagedCache, GrowsCopiesAndReadsBack) {
  PagedCache cache = make_cache();
  cache.reserve(2);
  const auto pages = cache.take(2);
  const auto places = cache.places({pages}, {20});
  const Tensor k = torch::randn({20, 3, 2, 4}), v = torch::randn({20, 3, 8});
  cache.write(1, places, k, v);
  EXPECT_TRUE(cache.reserve(4));  // moves pages that are in use
  const auto more = cache.take(2);
  for (const int32_t page : more) EXPECT_TRUE(page == 3 || page == 4) << page;
  cache.copy(pages[0], more[0]);
  cache.copy(pages[1], more[1]);
  for (const auto& own : {pages, more}) {
    const auto [keys, values] = cache.read(1, cache.places({own}, {20}));
    EXPECT_TRUE(torch::equal(keys, k));
    EXPECT_TRUE(torch::equal(values, v));
  }
}

TEST(PagedCache, TokensLieWhereTheTableSays) {
  PagedCache cache = make_cache();
  cache.reserve(4);
  const std::vector<std::vector<int32_t>> pages{{4, 1}, {3}};
  const std::vector<int64_t> tokens{20, 5};
  const Tensor k = torch::randn({25, 3, 2, 4}), v = torch::randn({25, 3, 8});
  cache.write(1, cache.places(pages, tokens), k, v);
  for (const auto& [row, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 17}, {1, 4}}) {
    const int64_t at = row * 20 + n;
    const auto& own = pages[static_cast<size_t>(row)];
    for (int64_t head = 0; head < 3; ++head) {
      EXPECT_EQ(cached(cache, 1, own, n, head, 2), k[at][head][0][2].item<float>());
      EXPECT_EQ(cached(cache, 1, own, n, head, 4 + 3), k[at][head][1][3].item<float>());
      EXPECT_EQ(cached(cache, 1, own, n, head, 8 + 7), v[at][head][7].item<float>());
      EXPECT_EQ(cached(cache, 0, own, n, head, 0), 0.0f);  // the other layer
    }
  }
}

TEST(PagedCache, RefusesPagesThatKernelsCannotRead) {
  EXPECT_THROW(PagedCache(1, kToken, 24, torch::kFloat32), Error);
  EXPECT_THROW(PagedCache(1, kToken, 0, torch::kFloat32), Error);
}

}  // namespace
}  // namespace diffattn::infer
