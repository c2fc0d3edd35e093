// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/hash.h"

// The two hash tables of a tokenizer. They use open addressing with linear probing, stay at most
// half full and never shrink.

namespace diffattn::io {

/// Returns a seed that differs between processes, so that no file can have keys that all collide.
uint64_t table_seed();

/// A map from strings to numbers. It copies the keys into one block.
class StringMap {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  /// Inserts value unless the key exists. Returns the value that the map then holds.
  uint32_t insert(std::string_view key, uint32_t value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    const uint64_t hash = hash64(key, seed_);
    Slot& slot = slots_[locate(key, hash)];
    if (slot.value == kNone) {
      slot = {hash, keys_.size(), static_cast<uint32_t>(key.size()), value};
      keys_.append(key);
      ++size_;
    }
    return slot.value;
  }

  /// Returns the number, or kNone.
  uint32_t find(std::string_view key) const {
    if (slots_.empty()) return kNone;
    return slots_[locate(key, hash64(key, seed_))].value;
  }

  size_t size() const { return size_; }

  /// Calls visit(key, value) for every entry, in no particular order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.value != kNone) visit(key_of(slot), slot.value);
    }
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint64_t begin = 0;  // start of the key in keys_
    uint32_t length = 0;
    uint32_t value = kNone;
  };

  std::string_view key_of(const Slot& slot) const {
    return std::string_view(keys_).substr(slot.begin, slot.length);
  }

  size_t locate(std::string_view key, uint64_t hash) const {
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.value == kNone || (slot.hash == hash && key_of(slot) == key)) return at;
    }
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    const size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.value == kNone) continue;
      size_t at = slot.hash & mask;
      while (slots_[at].value != kNone) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::string keys_;
  size_t size_ = 0;
  uint64_t seed_ = table_seed();
};

/// A map from pairs of ids to values. Value{} marks a free slot; find() returns it for a missing
/// pair.
template <typename Value>
class PairMap {
 public:
  Value& operator[](uint64_t pair) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[locate(pair)];
    if (slot.pair == kFree) {
      slot.pair = pair;
      ++size_;
    }
    return slot.value;
  }
  Value find(uint64_t pair) const {
    if (slots_.empty()) return Value{};
    return slots_[locate(pair)].value;
  }
  size_t size() const { return size_; }

  static uint64_t pair_of(uint32_t first, uint32_t second) {
    return uint64_t{first} << 32 | second;
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t pair = kFree;
    Value value{};
  };

  size_t locate(uint64_t pair) const {
    // XOR of the high and the low half of the product makes every bit of the pair count.
    const auto product = static_cast<unsigned __int128>(pair ^ seed_) * 0x9e3779b97f4a7c15;
    const uint64_t hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].pair != pair && slots_[at].pair != kFree) at = (at + 1) & mask;
    return at;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.pair != kFree) slots_[locate(slot.pair)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
  uint64_t seed_ = table_seed();
};

}  // namespace diffattn::io
