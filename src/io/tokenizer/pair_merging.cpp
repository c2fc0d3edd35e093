// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/pair_merging.h"

#include <algorithm>
#include <utility>

namespace diffattn::io {
namespace {

/// A pair that waits to be merged, with the words it was seen in. Its count may be out of date: it
/// only falls after the entry was made, and is looked up again when the entry comes first.
struct Entry {
  std::int64_t count;
  std::uint64_t pair;
  std::uint32_t places;  // index into PairMerging::places_

  bool operator<(const Entry& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class PairMerging {
 public:
  explicit PairMerging(CountedWords words) : words_(std::move(words)) {
    for (std::uint32_t word = 0; word < words_.length.size(); ++word) {
      const TokenId* symbols = words_.symbols.data() + words_.begin[word];
      for (std::uint32_t i = 0; i + 1 < words_.length[word]; ++i) {
        change(symbols[i], symbols[i + 1], word, 1);
      }
    }
    enqueue_new();
  }

  std::vector<Merge> run(std::uint64_t min_frequency,
                         const std::function<TokenId(TokenId, TokenId)>& join,
                         const std::function<bool()>& more) {
    std::vector<Merge> merges;
    while (!queue_.empty() && more()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Entry top = queue_.back();
      queue_.pop_back();
      const std::int64_t count = std::max<std::int64_t>(counts_.find(top.pair).count, 0);
      if (count != top.count) {
        top.count = count;
        push(top);
        continue;
      }
      if (count < 1 || static_cast<std::uint64_t>(count) < min_frequency) break;
      const auto first = static_cast<TokenId>(top.pair >> 32);
      const auto second = static_cast<TokenId>(top.pair);
      const TokenId joined = join(first, second);
      merges.push_back({first, second, joined});
      const std::vector<std::uint32_t> places = std::exchange(places_[top.places], {});
      free_.push_back(top.places);
      for (const std::uint32_t word : places) merge_in(word, merges.back());
      enqueue_new();
    }
    return merges;
  }

 private:
  static constexpr std::uint32_t kNoPlaces = 0xffffffff;
  struct Count {
    std::int64_t count = 0;
    std::uint32_t fresh = kNoPlaces;  // index into places_ of words seen since enqueue_new()
  };

  void push(const Entry& entry) {
    queue_.push_back(entry);
    std::push_heap(queue_.begin(), queue_.end());
  }

  void change(TokenId first, TokenId second, std::uint32_t word, int by) {
    const std::uint64_t pair = PairMap<Count>::pair_of(first, second);
    Count& count = counts_[pair];
    count.count += by * words_.count[word];
    if (by < 0) return;
    if (count.fresh == kNoPlaces) {
      if (free_.empty()) {
        count.fresh = static_cast<std::uint32_t>(places_.size());
        places_.emplace_back();
      } else {
        count.fresh = free_.back();
        free_.pop_back();
      }
      fresh_pairs_.push_back(pair);
    }
    std::vector<std::uint32_t>& places = places_[count.fresh];
    if (places.empty() || places.back() != word) places.push_back(word);
  }

  /// Pairs that got new places become entries of the queue.
  void enqueue_new() {
    for (const std::uint64_t pair : fresh_pairs_) {
      Count& count = counts_[pair];
      const std::uint32_t places = std::exchange(count.fresh, kNoPlaces);
      if (count.count > 0) {
        push({count.count, pair, places});
      } else {
        places_[places].clear();
        free_.push_back(places);
      }
    }
    fresh_pairs_.clear();
  }

  void merge_in(std::uint32_t word, const Merge& merge) {
    TokenId* symbols = words_.symbols.data() + words_.begin[word];
    const std::uint32_t length = words_.length[word];
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < length; ++i, ++kept) {
      if (symbols[i] != merge.first || i + 1 >= length || symbols[i + 1] != merge.second) {
        symbols[kept] = symbols[i];
        continue;
      }
      if (kept > 0) {
        change(symbols[kept - 1], merge.first, word, -1);
        change(symbols[kept - 1], merge.joined, word, 1);
      }
      if (i + 2 < length) {
        change(merge.second, symbols[i + 2], word, -1);
        change(merge.joined, symbols[i + 2], word, 1);
      }
      symbols[kept] = merge.joined;
      ++i;
    }
    words_.length[word] = kept;
  }

  CountedWords words_;
  PairMap<Count> counts_;
  std::vector<Entry> queue_;  // a heap, the most frequent pair first
  std::vector<std::vector<std::uint32_t>> places_;
  std::vector<std::uint32_t> free_;  // indices into places_ that no entry uses
  std::vector<std::uint64_t> fresh_pairs_;
};

}  // namespace

std::vector<Merge> merge_pairs(CountedWords words, std::uint64_t min_frequency,
                               const std::function<TokenId(TokenId, TokenId)>& join,
                               const std::function<bool()>& more) {
  return PairMerging(std::move(words)).run(min_frequency, join, more);
}

}  // namespace diffattn::io
