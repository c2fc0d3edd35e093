// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/token_step.h"

namespace diffattn::infer {

/// The sizes of one cached token: each kv head has `keys` keys (2, or 1 if both maps share it) and
/// a value.
struct CachedToken {
  int64_t kv_heads = 0, keys = 0, head_dim = 0, value_dim = 0;
  int64_t width() const { return keys * head_dim + value_dim; }
};

/// The KV cache of all layers of a model, as a pool of pages. A page holds page_size tokens of one
/// sequence in every layer, with k1, k2 and v of a head side by side. Sequences that begin alike
/// may share whole pages. Page 0 belongs to nobody: idle rows of a batch write to it.
class PagedCache {
 public:
  PagedCache(int64_t layers, const CachedToken& token, int64_t page_size,
             const torch::TensorOptions& options);

  int64_t page_size() const { return page_size_; }
  int64_t pages() const { return pool_.defined() ? pool_.size(1) : 0; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t pages_for(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }

  int64_t used_pages() const { return std::max<int64_t>(0, pages() - 1) - free_pages(); }
  int64_t bytes() const { return pool_.defined() ? static_cast<int64_t>(pool_.nbytes()) : 0; }

  /// Makes room for at least `pages` pages besides page 0, and keeps the contents. Returns true if
  /// the pool moved.
  bool reserve(int64_t pages);

  /// Takes free pages. Throws if there are too few.
  std::vector<int32_t> take(int64_t pages);
  /// Adds an owner to pages.
  void share(const std::vector<int32_t>& pages);
  /// Takes an owner away from pages. Those that have none left are free.
  void give_back(const std::vector<int32_t>& pages);
  /// Copies a page in every layer.
  void copy(int32_t from, int32_t to);

  /// The places of the first tokens of several sequences, one after the other.
  struct Places {
    torch::Tensor page, offset;  // [T] int64
  };
  /// `tokens[i]` tokens of the sequence that owns `pages[i]`.
  Places places(const std::vector<std::vector<int32_t>>& pages,
                const std::vector<int64_t>& tokens) const;
  /// Writes k [T, kv_heads, keys, D] and v [T, kv_heads, Dv].
  void write(int64_t layer, const Places& places, const torch::Tensor& k, const torch::Tensor& v);
  /// Returns the k and v at these places, as `write` takes them.
  std::pair<torch::Tensor, torch::Tensor> read(int64_t layer, const Places& places) const;

  /// Returns the cache of a layer for the kernels, without a table.
  token::Cache layer(int64_t index) const;

 private:
  CachedToken token_;
  int64_t page_size_;
  torch::Tensor pool_;  // [layers, pages, kv_heads, page_size, width]
  std::vector<int32_t> free_;
  std::vector<int32_t> owners_;  // of each page
  int64_t layers_;
  torch::TensorOptions options_;
};

}  // namespace diffattn::infer
