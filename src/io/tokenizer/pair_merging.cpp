// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/pair_merging.h"

#include <algorithm>
#include <utility>

namespace diffattn::io {
namespace {

/// A candidate pair and the words that contain it. The count of a pair can only fall while its
/// entry is in the queue, so run() compares it with the current count when it takes the entry out.
struct Entry {
  int64_t count;
  uint64_t pair;
  uint32_t places;  // index into PairMerging::places_

  bool operator<(const Entry& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class PairMerging {
 public:
  explicit PairMerging(CountedWords words) : words_(std::move(words)) {
    for (uint32_t word = 0; word < words_.length.size(); ++word) {
      const TokenId* symbols = words_.symbols.data() + words_.begin[word];
      for (uint32_t i = 0; i + 1 < words_.length[word]; ++i) {
        change(symbols[i], symbols[i + 1], word, 1);
      }
    }
    enqueue_new();
  }

  std::vector<Merge> run(uint64_t min_frequency,
                         const std::function<TokenId(TokenId, TokenId)>& join,
                         const std::function<bool()>& more) {
    std::vector<Merge> merges;
    while (!queue_.empty() && more()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Entry top = queue_.back();
      queue_.pop_back();
      const int64_t count = std::max<int64_t>(counts_.find(top.pair).count, 0);
      if (count != top.count) {
        top.count = count;
        push(top);
        continue;
      }
      if (count < 1 || static_cast<uint64_t>(count) < min_frequency) break;
      const auto first = static_cast<TokenId>(top.pair >> 32);
      const auto second = static_cast<TokenId>(top.pair);
      const TokenId joined = join(first, second);
      const std::vector<uint32_t> places = std::exchange(places_[top.places], {});
      free_.push_back(top.places);
      if (joined == Vocabulary::kNone) continue;
      merges.push_back({first, second, joined});
      for (const uint32_t word : places) merge_in(word, merges.back());
      enqueue_new();
    }
    return merges;
  }

 private:
  static constexpr uint32_t kNoPlaces = 0xffffffff;
  struct Count {
    int64_t count = 0;
    uint32_t fresh = kNoPlaces;  // index into places_: words found since the last enqueue_new()
  };

  void push(const Entry& entry) {
    queue_.push_back(entry);
    std::push_heap(queue_.begin(), queue_.end());
  }

  void change(TokenId first, TokenId second, uint32_t word, int by) {
    const uint64_t pair = PairMap<Count>::pair_of(first, second);
    Count& count = counts_[pair];
    count.count += by * words_.count[word];
    if (by < 0) return;
    if (count.fresh == kNoPlaces) {
      if (free_.empty()) {
        count.fresh = static_cast<uint32_t>(places_.size());
        places_.emplace_back();
      } else {
        count.fresh = free_.back();
        free_.pop_back();
      }
      fresh_pairs_.push_back(pair);
    }
    std::vector<uint32_t>& places = places_[count.fresh];
    if (places.empty() || places.back() != word) places.push_back(word);
  }

  /// Adds an entry to the queue for every pair with new places.
  void enqueue_new() {
    for (const uint64_t pair : fresh_pairs_) {
      Count& count = counts_[pair];
      const uint32_t places = std::exchange(count.fresh, kNoPlaces);
      if (count.count > 0) {
        push({count.count, pair, places});
      } else {
        places_[places].clear();
        free_.push_back(places);
      }
    }
    fresh_pairs_.clear();
  }

  void merge_in(uint32_t word, const Merge& merge) {
    TokenId* symbols = words_.symbols.data() + words_.begin[word];
    const uint32_t length = words_.length[word];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < length; ++i, ++kept) {
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
  std::vector<Entry> queue_;  // a heap with the most frequent pair on top
  std::vector<std::vector<uint32_t>> places_;
  std::vector<uint32_t> free_;  // indices into places_ that no entry uses
  std::vector<uint64_t> fresh_pairs_;
};

}  // namespace

std::vector<Merge> merge_pairs(CountedWords words, uint64_t min_frequency,
                               const std::function<TokenId(TokenId, TokenId)>& join,
                               const std::function<bool()>& more) {
  return PairMerging(std::move(words)).run(min_frequency, join, more);
}

}  // namespace diffattn::io
