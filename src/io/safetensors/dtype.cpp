// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/dtype.h"

namespace diffattn::io {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;
  uint64_t bits;
};

// In enum order: the value of a dtype is the index of its row.
constexpr std::array<Row, kDtypeCount> kRows = {{
    {Dtype::kBool, "BOOL", 8},
    {Dtype::kF4, "F4", 4},
    {Dtype::kF6E2M3, "F6_E2M3", 6},
    {Dtype::kF6E3M2, "F6_E3M2", 6},
    {Dtype::kU8, "U8", 8},
    {Dtype::kI8, "I8", 8},
    {Dtype::kF8E5M2, "F8_E5M2", 8},
    {Dtype::kF8E4M3, "F8_E4M3", 8},
    {Dtype::kF8E8M0, "F8_E8M0", 8},
    {Dtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {Dtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {Dtype::kI16, "I16", 16},
    {Dtype::kU16, "U16", 16},
    {Dtype::kF16, "F16", 16},
    {Dtype::kBF16, "BF16", 16},
    {Dtype::kI32, "I32", 32},
    {Dtype::kU32, "U32", 32},
    {Dtype::kF32, "F32", 32},
    {Dtype::kC64, "C64", 64},
    {Dtype::kF64, "F64", 64},
    {Dtype::kI64, "I64", 64},
    {Dtype::kU64, "U64", 64},
}};

constexpr bool rows_in_enum_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_in_enum_order());

constexpr std::array<Dtype, kDtypeCount> make_all() {
  std::array<Dtype, kDtypeCount> all{};
  for (size_t i = 0; i < kRows.size(); ++i) all[i] = kRows[i].dtype;
  return all;
}
constexpr std::array<Dtype, kDtypeCount> kAll = make_all();

}  // namespace

const std::array<Dtype, kDtypeCount>& all_dtypes() noexcept { return kAll; }

std::string_view dtype_name(Dtype dtype) noexcept { return kRows[static_cast<size_t>(dtype)].name; }

uint64_t dtype_bits(Dtype dtype) noexcept { return kRows[static_cast<size_t>(dtype)].bits; }

std::optional<Dtype> parse_dtype(std::string_view name) noexcept {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace diffattn::io
