// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "io/tokenizer/string_map.h"

// Priority queues of the possible merges in one word: the lowest rank first, then the leftmost.

namespace diffattn::io {

struct WaitingMerge {
  uint32_t rank;
  uint32_t position;
};

/// A binary heap: fastest for words of some hundred symbols.
class MergeHeap {
 public:
  bool empty() const { return entries_.empty(); }
  void push(WaitingMerge merge) {
    entries_.push_back(uint64_t{merge.rank} << 32 | merge.position);
    std::push_heap(entries_.begin(), entries_.end(), std::greater<>());
  }
  WaitingMerge pop() {
    const uint64_t top = entries_.front();
    std::pop_heap(entries_.begin(), entries_.end(), std::greater<>());
    entries_.pop_back();
    return {static_cast<uint32_t>(top >> 32), static_cast<uint32_t>(top)};
  }

 private:
  std::vector<uint64_t> entries_;
};

/// One list per rank: fastest for words of a million symbols, where a heap misses the cache.
/// Bpe applies the merges of one rank from left to right, so most new merges of another rank also
/// arrive in order and are appended. Only the others go through a heap.
class MergeLists {
 public:
  bool empty() const { return ranks_.empty(); }

  void push(WaitingMerge merge) {
    uint32_t& index = index_[merge.rank];
    if (index == 0) {
      lists_.emplace_back();
      index = static_cast<uint32_t>(lists_.size());
    }
    List& list = lists_[index - 1];
    if (list.empty()) {
      list.clear();
      ranks_.push_back(uint64_t{merge.rank} << 32 | (index - 1));
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    }
    if (list.ordered.empty() || list.ordered.back() <= merge.position) {
      list.ordered.push_back(merge.position);
    } else {
      list.late.push_back(merge.position);
      std::push_heap(list.late.begin(), list.late.end(), std::greater<>());
    }
  }

  WaitingMerge pop() {
    const uint64_t top = ranks_.front();
    List& list = lists_[static_cast<uint32_t>(top)];
    uint32_t position;
    if (!list.late.empty() &&
        (list.next == list.ordered.size() || list.late.front() < list.ordered[list.next])) {
      position = list.late.front();
      std::pop_heap(list.late.begin(), list.late.end(), std::greater<>());
      list.late.pop_back();
    } else {
      position = list.ordered[list.next++];
    }
    if (list.empty()) {
      std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
      ranks_.pop_back();
    }
    return {static_cast<uint32_t>(top >> 32), position};
  }

 private:
  struct List {
    std::vector<uint32_t> ordered;
    size_t next = 0;  // first entry of ordered that pop() has not returned
    std::vector<uint32_t> late;

    bool empty() const { return next == ordered.size() && late.empty(); }
    void clear() {
      ordered.clear();
      next = 0;
    }
  };

  PairMap<uint32_t> index_;  // rank -> index into lists_, plus 1
  std::vector<List> lists_;
  std::vector<uint64_t> ranks_;  // heap of rank << 32 | index of the lists that are not empty
};

}  // namespace diffattn::io
