// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace diffattn::io {

/// The XXH64 hash of a stream of bytes. It detects damage, not forgery.
class Hash64 {
 public:
  explicit Hash64(uint64_t seed = 0) noexcept;
  void update(std::span<const std::byte> data) noexcept;
  void update(std::string_view text) noexcept;
  /// Returns the hash of all bytes so far; update() may still be called.
  uint64_t digest() const noexcept;

 private:
  std::array<uint64_t, 4> lanes_;
  std::array<std::byte, 32> block_;  // the incomplete last block: size_ % 32 bytes
  uint64_t seed_;
  uint64_t size_ = 0;
};

uint64_t hash64(std::string_view text, uint64_t seed = 0) noexcept;

}  // namespace diffattn::io
