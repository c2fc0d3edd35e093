// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace diffattn::io {

/// Element types of the safetensors format, in the format's order of increasing alignment.
enum class Dtype : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

inline constexpr size_t kDtypeCount = 22;

/// Returns every dtype once, in enum order.
const std::array<Dtype, kDtypeCount>& all_dtypes() noexcept;

/// Returns the name used in files: "F32", "BF16", "F8_E4M3", ...
std::string_view dtype_name(Dtype dtype) noexcept;

/// Returns the bits of one element: 4 or 6 for the packed sub-byte types.
uint64_t dtype_bits(Dtype dtype) noexcept;

/// Returns the dtype with that exact name (case matters), or nullopt.
std::optional<Dtype> parse_dtype(std::string_view name) noexcept;

/// `DtypeOf<T>::value` is the dtype whose elements are objects of type T. It has no value for bool:
/// a BOOL byte in a file may differ from 0 and 1, but a C++ bool must not.
template <typename T>
struct DtypeOf;

// clang-format off
template <> struct DtypeOf<uint8_t> { static constexpr Dtype value = Dtype::kU8; };
template <> struct DtypeOf<int8_t> { static constexpr Dtype value = Dtype::kI8; };
template <> struct DtypeOf<uint16_t> { static constexpr Dtype value = Dtype::kU16; };
template <> struct DtypeOf<int16_t> { static constexpr Dtype value = Dtype::kI16; };
template <> struct DtypeOf<uint32_t> { static constexpr Dtype value = Dtype::kU32; };
template <> struct DtypeOf<int32_t> { static constexpr Dtype value = Dtype::kI32; };
template <> struct DtypeOf<uint64_t> { static constexpr Dtype value = Dtype::kU64; };
template <> struct DtypeOf<int64_t> { static constexpr Dtype value = Dtype::kI64; };
template <> struct DtypeOf<float> { static constexpr Dtype value = Dtype::kF32; };
template <> struct DtypeOf<double> { static constexpr Dtype value = Dtype::kF64; };
template <> struct DtypeOf<std::complex<float>> { static constexpr Dtype value = Dtype::kC64; };
// clang-format on

}  // namespace diffattn::io
