// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace diffattn::io {

/// XXH64 of bytes that come in pieces. It guards against damage, not against forgery.
class Hash64 {
 public:
  explicit Hash64(std::uint64_t seed = 0) noexcept;
  void update(std::span<const std::byte> data) noexcept;
  void update(std::string_view text) noexcept;
  /// Of everything so far; more may follow.
  std::uint64_t digest() const noexcept;

 private:
  std::array<std::uint64_t, 4> lanes_;
  std::array<std::byte, 32> block_;  // what does not fill a block yet
  std::uint64_t seed_;
  std::uint64_t size_ = 0;
};

std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0) noexcept;

}  // namespace diffattn::io
