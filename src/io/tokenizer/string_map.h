// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/hash.h"

// PRIVATE header of the io layer: the two hash tables behind a tokenizer, open addressing with
// linear probing, at most half full, never shrinking.

namespace diffattn::io {

/// Differs from process to process, so that no file can be made whose keys all collide.
std::uint64_t table_seed();

/// Strings to numbers; keys are copied into one block.
class StringMap {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  /// The number stored for key after the call: value, or what was there before.
  std::uint32_t insert(std::string_view key, std::uint32_t value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    const std::uint64_t hash = hash64(key, seed_);
    Slot& slot = slots_[locate(key, hash)];
    if (slot.value == kNone) {
      slot = {hash, keys_.size(), static_cast<std::uint32_t>(key.size()), value};
      keys_.append(key);
      ++size_;
    }
    return slot.value;
  }

  /// The number, or kNone.
  std::uint32_t find(std::string_view key) const {
    if (slots_.empty()) return kNone;
    return slots_[locate(key, hash64(key, seed_))].value;
  }

  std::size_t size() const { return size_; }

  /// Calls visit(key, value) for every entry, in no order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.value != kNone) visit(key_of(slot), slot.value);
    }
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint64_t begin = 0;  // of the key in keys_
    std::uint32_t length = 0;
    std::uint32_t value = kNone;
  };

  std::string_view key_of(const Slot& slot) const {
    return std::string_view(keys_).substr(slot.begin, slot.length);
  }

  std::size_t locate(std::string_view key, std::uint64_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.value == kNone || (slot.hash == hash && key_of(slot) == key)) return at;
    }
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    const std::size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.value == kNone) continue;
      std::size_t at = slot.hash & mask;
      while (slots_[at].value != kNone) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::string keys_;
  std::size_t size_ = 0;
  std::uint64_t seed_ = table_seed();
};

/// Pairs of ids to a Value; Value{} marks a free slot and is what find() gives for none.
template <typename Value>
class PairMap {
 public:
  Value& operator[](std::uint64_t pair) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[locate(pair)];
    if (slot.pair == kFree) {
      slot.pair = pair;
      ++size_;
    }
    return slot.value;
  }
  Value find(std::uint64_t pair) const {
    if (slots_.empty()) return Value{};
    return slots_[locate(pair)].value;
  }
  std::size_t size() const { return size_; }

  static std::uint64_t pair_of(std::uint32_t first, std::uint32_t second) {
    return std::uint64_t{first} << 32 | second;
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t pair = kFree;
    Value value{};
  };

  std::size_t locate(std::uint64_t pair) const {
    // Folding the high half of the product onto the low one makes every bit of the pair count.
    const auto product = static_cast<unsigned __int128>(pair ^ seed_) * 0x9e3779b97f4a7c15;
    const std::uint64_t hash =
        static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash & mask;
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
  std::size_t size_ = 0;
  std::uint64_t seed_ = table_seed();
};

}  // namespace diffattn::io
