// SPDX-License-Identifier: Apache-2.0
#include "io/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace diffattn::io {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f,
                   kPrime3 = 0x165667b19e3779f9, kPrime4 = 0x85ebca77c2b2ae63,
                   kPrime5 = 0x27d4eb2f165667c5;
constexpr size_t kBlock = 32;

template <typename T>
uint64_t load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint64_t round(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

void take_block(std::array<uint64_t, 4>& lanes, const std::byte* block) {
  for (size_t i = 0; i < 4; ++i) {
    lanes[i] = round(lanes[i], load<uint64_t>(block + 8 * i));
  }
}

/// Hashes the last 0 to 31 bytes and applies the final mixing.
uint64_t finish(uint64_t hash, const std::byte* rest, size_t size) {
  for (; size >= 8; size -= 8, rest += 8) {
    hash = std::rotl(hash ^ round(0, load<uint64_t>(rest)), 27) * kPrime1 + kPrime4;
  }
  if (size >= 4) {
    hash = std::rotl(hash ^ load<uint32_t>(rest) * kPrime1, 23) * kPrime2 + kPrime3;
    size -= 4;
    rest += 4;
  }
  for (; size > 0; --size, ++rest) {
    hash = std::rotl(hash ^ load<uint8_t>(rest) * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Hash64::Hash64(uint64_t seed) noexcept
    : lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1}, seed_(seed) {}

void Hash64::update(std::span<const std::byte> data) noexcept {
  const size_t held = size_ % kBlock;
  size_ += data.size();
  if (held > 0) {
    const size_t taken = std::min(kBlock - held, data.size());
    if (taken > 0) std::memcpy(block_.data() + held, data.data(), taken);
    data = data.subspan(taken);
    if (held + taken < kBlock) return;
    take_block(lanes_, block_.data());
  }
  for (; data.size() >= kBlock; data = data.subspan(kBlock)) take_block(lanes_, data.data());
  if (!data.empty()) std::memcpy(block_.data(), data.data(), data.size());
}

void Hash64::update(std::string_view text) noexcept { update(bytes_of(text)); }

uint64_t Hash64::digest() const noexcept {
  uint64_t hash = seed_ + kPrime5;
  if (size_ >= kBlock) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  return finish(hash + size_, block_.data(), size_ % kBlock);
}

uint64_t hash64(std::string_view text, uint64_t seed) noexcept {
  if (text.size() < kBlock) {
    return finish(seed + kPrime5 + text.size(), bytes_of(text).data(), text.size());
  }
  Hash64 hash(seed);
  hash.update(text);
  return hash.digest();
}

}  // namespace diffattn::io
