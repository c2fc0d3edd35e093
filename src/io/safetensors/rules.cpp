// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors/rules.h"

#include <algorithm>

#include "diffattn/io/error.h"
#include "diffattn/io/safetensors.h"
#include "io/checked.h"

namespace diffattn::io {
namespace {

// True for ASCII controls, DEL, and U+0080..U+009F, which terminals also interpret.
bool has_control_character(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f) return true;
    if (byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::optional<std::string> name_fault(std::string_view name) {
  if (name.empty() || name.size() > kMaxTensorNameBytes) {
    return "expected a tensor name of 1 to " + std::to_string(kMaxTensorNameBytes) +
           " bytes, got one of " + std::to_string(name.size());
  }
  if (has_control_character(name)) {
    return "expected a tensor name without control characters, got " + in_quotes(name);
  }
  return std::nullopt;
}

SizeOrFault size_of_tensor(Dtype dtype, std::span<const int64_t> shape) {
  if (shape.size() > kMaxRank) {
    return {0, "expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
                   std::to_string(shape.size())};
  }
  // We multiply max(d, 1), so that the bound also holds for an empty tensor such as
  // [0, 2^40, 2^40]: callers who compute strides from the shape must not overflow.
  uint64_t elements = 1;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) {
      return {0, "expected dimensions of at least 0, got shape " + shape_text(shape)};
    }
    empty = empty || dimension == 0;
    const auto product =
        checked_mul(elements, static_cast<uint64_t>(std::max<int64_t>(dimension, 1)));
    if (!product) {
      return {0, "expected a number of elements below 2^64, got shape " + shape_text(shape)};
    }
    elements = *product;
  }
  const auto bits = checked_mul(elements, dtype_bits(dtype));
  if (!bits) {
    return {0, "expected a number of bits below 2^64, got " + std::string(dtype_name(dtype)) + " " +
                   shape_text(shape)};
  }
  if (empty) return {0, ""};
  if (*bits % 8 != 0) {
    return {0, "expected a whole number of bytes, got " + std::to_string(*bits) + " bits of " +
                   std::string(dtype_name(dtype))};
  }
  return {*bits / 8, ""};
}

uint64_t tensor_bytes(const TensorSpec& spec, const std::string& file) {
  const SizeOrFault size = size_of_tensor(spec.dtype, spec.shape);
  if (!size.fault.empty()) {
    throw Error(file, "tensor " + in_quotes(spec.name) + ": " + size.fault);
  }
  return size.bytes;
}

}  // namespace diffattn::io
