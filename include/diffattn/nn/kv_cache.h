// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

namespace diffattn::nn {

/// What one attention layer remembers of the tokens it has seen: numbered buffers [B, length, ...]
/// that grow along the sequence. Multi-head attention keeps keys in slot 0 and values in slot 1;
/// other layers use as many slots as they have things to keep (one pair per path, say), appending
/// the same number of rows to each of them in a step.
///
/// Memory is taken in chunks of `chunk` rows, at least doubling, so that a step costs no allocation
/// and no copy most of the time. Rows of a batch have one common length: pad prompts on the left
/// and give `key_starts` with every step. Not for training: rows that require gradients are
/// refused.
class KvCache {
 public:
  explicit KvCache(int64_t chunk = 256);
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  /// Rows that every slot in use holds; 0 when empty.
  int64_t length() const;
  bool empty() const { return length() == 0; }

  /// Adds rows [B, n, ...] to a slot and returns all of it, [B, length + n, ...]: a view that stays
  /// valid (and keeps its values) until the cache is rewound and overwritten.
  torch::Tensor append(size_t slot, const torch::Tensor& rows);

  /// Rows [begin, begin + n) of a slot's memory [B, capacity, ...].
  struct Room {
    torch::Tensor buffer;
    int64_t begin;
  };
  /// Adds rows of `sizes` [B, n, ...] to a slot and leaves it to the caller to write them.
  Room extend(size_t slot, torch::IntArrayRef sizes, const torch::TensorOptions& options);

  /// What a slot holds, [B, length, ...]; undefined when nothing was appended.
  torch::Tensor filled(size_t slot) const;

  /// Forgets all rows from `length` on, in every slot. Memory is kept.
  void rewind(int64_t length);

  /// Row b becomes what row `rows[b]` was (beam search, dropping finished rows). `rows`: integers.
  void select_rows(const torch::Tensor& rows);

  /// Empties the cache and gives its memory back.
  void clear() { slots_.clear(); }

  /// A copy with memory of its own.
  KvCache clone() const;

 private:
  struct Slot {
    torch::Tensor buffer;  // [B, capacity, ...]
    int64_t length = 0;
  };
  void reserve(Slot& slot, torch::IntArrayRef sizes, const torch::TensorOptions& options) const;

  int64_t chunk_;
  std::vector<Slot> slots_;
};

}  // namespace diffattn::nn
