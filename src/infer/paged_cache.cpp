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
  const int64_t before = this->pages();
  if (pages + 1 <= before) return false;
  // Zeros, because masked columns of a page still take part in products.
  const Tensor larger =
      torch::zeros({layers_, pages + 1, token_.kv_heads, page_size_, token_.width()}, options_);
  if (used_pages() > 0) larger.narrow(1, 0, before).copy_(pool_);
  pool_ = larger;
  owners_.resize(static_cast<size_t>(pages) + 1, 0);
  std::vector<int32_t> added(static_cast<size_t>(pages + 1 - std::max<int64_t>(1, before)));
  std::iota(added.rbegin(), added.rend(), static_cast<int32_t>(std::max<int64_t>(1, before)));
  free_.insert(free_.begin(), added.begin(), added.end());
  return true;
}

std::vector<int32_t> PagedCache::take(int64_t pages) {
  TORCH_CHECK(pages <= free_pages(), "PagedCache: ", pages, " pages wanted, ", free_pages(),
              " are free");
  const auto first = free_.end() - pages;
  std::vector<int32_t> taken(first, free_.end());
  free_.erase(first, free_.end());
  share(taken);
  return taken;
}

void PagedCache::share(const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) ++owners_[static_cast<size_t>(page)];
}

void PagedCache::give_back(const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) {
    if (--owners_[static_cast<size_t>(page)] == 0) free_.push_back(page);
  }
}

void PagedCache::copy(int32_t from, int32_t to) {
  pool_.select(1, to).copy_(pool_.select(1, from));
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

std::pair<Tensor, Tensor> PagedCache::read(int64_t layer, const Places& places) const {
  const Tensor rows =
      pool_.select(0, layer).transpose(1, 2).index({places.page, places.offset});  // as in write
  const int64_t keys = token_.keys * token_.head_dim;
  return {rows.narrow(-1, 0, keys).unflatten(-1, {token_.keys, token_.head_dim}),
          rows.narrow(-1, keys, token_.value_dim)};
}

token::Cache PagedCache::layer(int64_t index) const {
  const Tensor pages = pool_.select(0, index);
  return {.pages = pages.mutable_data_ptr(),
          .page_stride = pages.stride(0),
          .head_stride = pages.stride(1),
          .token_stride = pages.stride(2),
          .page_size = static_cast<int>(page_size_)};
}

}  // namespace diffattn::infer
