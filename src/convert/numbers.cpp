// SPDX-License-Identifier: Apache-2.0
#include "convert/numbers.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "diffattn/kernels/half.h"

namespace diffattn::convert {
namespace {

using io::Dtype;

template <typename T>
T load_as(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void store_as(T value, std::byte* to) noexcept {
  std::memcpy(to, &value, sizeof value);
}

/// Rounds to odd: truncates to float and sets the last bit if the result is inexact. Rounding that
/// to a type of at most 22 bits gives the same as rounding the double once.
float to_odd(double value) noexcept {
  float narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) == value || !std::isfinite(narrow)) return narrow;
  auto bits = std::bit_cast<uint32_t>(narrow);
  if (std::abs(static_cast<double>(narrow)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

}  // namespace

bool is_number_type(Dtype dtype) noexcept {
  return dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16 ||
         dtype == Dtype::kF64;
}

size_t bytes_of(Dtype dtype) noexcept { return static_cast<size_t>(io::dtype_bits(dtype) / 8); }

double load_number(Dtype dtype, const std::byte* from) noexcept {
  switch (dtype) {
    case Dtype::kF64: return load_as<double>(from);
    case Dtype::kBF16: return static_cast<float>(load_as<BFloat16>(from));
    case Dtype::kF16: return static_cast<float>(load_as<Float16>(from));
    default: return load_as<float>(from);
  }
}

void store_number(Dtype dtype, double value, std::byte* to) noexcept {
  switch (dtype) {
    case Dtype::kF64: return store_as(value, to);
    case Dtype::kBF16: return store_as(BFloat16(to_odd(value)), to);
    case Dtype::kF16: return store_as(Float16(to_odd(value)), to);
    default: return store_as(static_cast<float>(value), to);
  }
}

double rounded(Dtype dtype, double value) noexcept {
  std::byte bytes[sizeof(double)];
  store_number(dtype, value, bytes);
  return load_number(dtype, bytes);
}

std::vector<double> numbers_of(const io::TensorSource& source, const std::string& name) {
  const io::TensorInfo& info = source.at(name);
  const std::vector<std::byte> bytes = source.read_bytes(name);
  std::vector<double> values(bytes.size() / bytes_of(info.dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load_number(info.dtype, bytes.data() + i * bytes_of(info.dtype));
  }
  return values;
}

/// The splitmix64 generator.
uint64_t NormalNumbers::bits() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The Box-Muller transform; it makes two numbers at a time.
double NormalNumbers::next() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double u = static_cast<double>((bits() >> 11) + 1) * 0x1p-53;  // in (0, 1]
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(bits() >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2.0 * std::log(u));
  spare_ = radius * std::sin(angle);
  has_spare_ = true;
  return radius * std::cos(angle);
}

}  // namespace diffattn::convert
