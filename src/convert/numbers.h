// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "diffattn/io/dtype.h"
#include "diffattn/io/tensor_source.h"

/// The floating-point types of weight files as numbers.
namespace diffattn::convert {

/// True for float64, float32, bfloat16 and float16, the types weights may have here.
bool is_number_type(io::Dtype dtype) noexcept;
std::size_t bytes_of(io::Dtype dtype) noexcept;

double load_number(io::Dtype dtype, const std::byte* from) noexcept;
/// Rounds once, to nearest, ties to even.
void store_number(io::Dtype dtype, double value, std::byte* to) noexcept;
/// The value that a stored number has.
double rounded(io::Dtype dtype, double value) noexcept;

/// All elements of a tensor of a number type.
std::vector<double> numbers_of(const io::TensorSource& source, const std::string& name);

/// n >= 2 numbers of a type whose sum of `weight(x)` is `total` as nearly as they can: alike but
/// for the last two, which make up for what rounding took from those before. `inverse` undoes
/// `weight`. `reserve` is the share kept back for them where weights cannot be negative.
template <typename Weight, typename Inverse>
std::vector<double> spread(io::Dtype dtype, std::size_t n, double total, double reserve,
                           Weight weight, Inverse inverse) {
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

/// Normally distributed numbers that depend on the seed and the position alone.
class NormalNumbers {
 public:
  explicit NormalNumbers(std::uint64_t seed) : state_(seed) {}
  double next();

 private:
  std::uint64_t bits();
  std::uint64_t state_;
  double spare_ = 0.0;
  bool has_spare_ = false;
};

}  // namespace diffattn::convert
