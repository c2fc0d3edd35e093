// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "diffattn/io/dtype.h"
#include "diffattn/io/tensor_source.h"

/// Reads and writes the floating-point types of weight files.
namespace diffattn::convert {

/// True for float64, float32, bfloat16 and float16, the supported types of weights.
bool is_number_type(io::Dtype dtype) noexcept;
size_t bytes_of(io::Dtype dtype) noexcept;

double load_number(io::Dtype dtype, const std::byte* from) noexcept;
/// Stores a number, rounded once to nearest, ties to even.
void store_number(io::Dtype dtype, double value, std::byte* to) noexcept;
/// Returns the value that store_number() stores.
double rounded(io::Dtype dtype, double value) noexcept;

/// Returns all elements of a floating-point tensor.
std::vector<double> numbers_of(const io::TensorSource& source, const std::string& name);

/// Returns n >= 2 numbers of a dtype such that the sum of `weight(x)` is as close to `total` as
/// possible. All are about equal, except the last two, which correct the rounding of the others.
/// `inverse` inverts `weight`. `reserve` is the share of `total` reserved for the last two; it must
/// be positive if weights cannot be negative.
template <typename Weight, typename Inverse>
std::vector<double> spread(io::Dtype dtype, size_t n, double total, double reserve, Weight weight,
                           Inverse inverse) {
  std::vector<double> values;
  const auto add = [&](double part) {
    values.push_back(rounded(dtype, inverse(part)));
    total -= weight(values.back());
  };
  const double kept = total * reserve;
  while (values.size() + 2 < n) {
    add((total - kept) / static_cast<double>(n - 2 - values.size()));
  }
  add(total * (1.0 - reserve));
  add(total);
  return values;
}

/// Generates normally distributed numbers that depend only on the seed and the position.
class NormalNumbers {
 public:
  explicit NormalNumbers(uint64_t seed) : state_(seed) {}
  double next();

 private:
  uint64_t bits();
  uint64_t state_;
  double spare_ = 0.0;
  bool has_spare_ = false;
};

}  // namespace diffattn::convert
