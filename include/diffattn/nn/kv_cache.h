// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

namespace diffattn::nn {

/// The cache of one layer. Attention has numbered buffers ("slots") [B, length, ...] that grow
/// along the sequence. Multi-head attention stores keys in slot 0 and values in slot 1. Other
/// layers use more slots, for example one pair per path. A step appends the same number of rows to
/// each slot. Recurrent layers have states instead, tensors [B, ...] of a fixed size.
///
/// A slot that is full at least doubles, to a multiple of `chunk` rows, so that most steps need no
/// allocation and no copy. All rows of a batch have the same length: pad prompts on the left and
/// pass `key_starts` in every step. Not for training: `append` throws for rows that require
/// gradients.
class KvCache {
 public:
  explicit KvCache(int64_t chunk = 256);
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  /// Returns the number of tokens that the cache has seen: rows of each slot with the dropped ones,
  /// or tokens of the states. 0 if empty.
  int64_t length() const;
  bool empty() const { return length() == 0; }

  /// Appends rows [B, n, ...] to a slot and returns a view of all its rows, [B, length + n, ...].
  /// The view keeps its values until the cache is rewound and overwritten.
  torch::Tensor append(size_t slot, const torch::Tensor& rows);

  /// The memory of a slot, [B, capacity, ...], and the first row to write.
  struct Room {
    torch::Tensor buffer;
    int64_t begin;
  };
  /// Appends uninitialised rows of `sizes` [B, n, ...] to a slot, for the caller to write.
  Room extend(size_t slot, torch::IntArrayRef sizes, const torch::TensorOptions& options);

  /// Returns the rows of a slot, [B, length - dropped, ...]; undefined if nothing was appended.
  torch::Tensor filled(size_t slot) const;

  /// Drops all rows of every slot but the newest `count`: those that a sliding window still sees.
  void keep_newest(int64_t count);
  /// Returns how many of the oldest rows were dropped.
  int64_t dropped() const { return dropped_; }

  /// Returns a state, [B, ...]; undefined at first.
  torch::Tensor state(size_t index) const;
  /// Replaces a state. `advance` then counts the tokens that it has seen.
  void set_state(size_t index, const torch::Tensor& state);
  void advance(int64_t tokens) { tokens_ += tokens; }

  /// Drops the rows from `length` on, in every slot. Does not free memory. Throws if the rows
  /// before them were dropped, or if there are states, which cannot go back (except to 0).
  void rewind(int64_t length);

  /// Replaces batch row b by the old row `rows[b]` (beam search, dropping finished rows). `rows`:
  /// integers.
  void select_rows(const torch::Tensor& rows);

  /// Empties the cache and frees its memory.
  void clear();

  /// Returns a deep copy.
  KvCache clone() const;

 private:
  struct Slot {
    torch::Tensor buffer;  // [B, capacity, ...]
    int64_t first = 0;     // row of the buffer that holds the oldest row, number `dropped_`
    int64_t length = 0;    // rows of the buffer in use, with those before `first`
  };
  void reserve(Slot& slot, torch::IntArrayRef sizes, const torch::TensorOptions& options) const;

  int64_t chunk_;
  std::vector<Slot> slots_;
  std::vector<torch::Tensor> states_;
  int64_t dropped_ = 0;
  int64_t tokens_ = 0;  // that the states have seen
};

}  // namespace diffattn::nn
