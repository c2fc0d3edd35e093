// SPDX-License-Identifier: Apache-2.0
#include "infer/paged_cache.h"

#include <numeric>

#include "diffattn/ops.h"

namespace diffattn::infer {

using torch::Tensor;

PagedCache::PagedCache(int64_t layers, const CachedToken& token, int64_t page_size,
                       const torch::TensorOptions& options)
    : token_(token), page_size_(page_size), layers_(layers), options_(options) {
  if (page_size < 16 || page_size % 16 != 0) {
    throw_argument_error("page_size", "a positive multiple of 16", std::to_string(page_size));
  }
}

bool PagedCache::reserve(int64_t pages) {
  if (pages + 1 <= this->pages()) return false;
  TORCH_CHECK(!pool_.defined() || free_pages() + 1 == this->pages(),
              "PagedCache: the pool can only grow while all pages are free");
  pool_ = Tensor();  // frees the old pool before the new one is made
  // Zeros, because masked columns of a page still take part in products.
  pool_ = torch::zeros({layers_, pages + 1, token_.kv_heads, page_size_, token_.width()}, options_);
  free_.resize(static_cast<size_t>(pages));
  std::iota(free_.rbegin(), free_.rend(), 1);
  return true;
}

std::vector<int32_t> PagedCache::take(int64_t pages) {
  TORCH_CHECK(pages <= free_pages(), "PagedCache: ", pages, " pages wanted, ", free_pages(),
              " are free");
  const auto first = free_.end() - pages;
  std::vector<int32_t> taken(first, free_.end());
  free_.erase(first, free_.end());
  return taken;
}

void PagedCache::give_back(const std::vector<int32_t>& pages) {
  free_.insert(free_.end(), pages.begin(), pages.end());
}

PagedCache::Places PagedCache::places(const std::vector<std::vector<int32_t>>& pages,
                                      const std::vector<int64_t>& tokens) const {
  std::vector<int64_t> page, offset;
  for (size_t i = 0; i < pages.size(); ++i) {
    for (int64_t n = 0; n < tokens[i]; ++n) {
      page.push_back(pages[i][static_cast<size_t>(n / page_size_)]);
      offset.push_back(n % page_size_);
    }
  }
  const auto on_device = [&](const std::vector<int64_t>& numbers) {
    return torch::tensor(numbers, torch::kLong).to(pool_.device());
  };
  return {on_device(page), on_device(offset)};
}

void PagedCache::write(int64_t layer, const Places& places, const Tensor& k, const Tensor& v) {
  const Tensor rows = torch::cat({k.flatten(2), v}, -1);  // [T, kv_heads, width]
  pool_.select(0, layer).transpose(1, 2).index_put_({places.page, places.offset}, rows);
}

cuda::token::Cache PagedCache::layer(int64_t index) const {
  const Tensor pages = pool_.select(0, index);
  return {.pages = pages.mutable_data_ptr(),
          .page_stride = pages.stride(0),
          .head_stride = pages.stride(1),
          .token_stride = pages.stride(2),
          .page_size = static_cast<int>(page_size_)};
}

}  // namespace diffattn::infer
