// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

// PRIVATE header of the data layer: positions in a stream of batches, as JSON text of whole
// numbers.

namespace diffattn::data {

struct PositionField {
  std::string_view name;
  std::uint64_t value;
};

/// {"kind": kind, "a": 1, ...}
std::string write_position(std::string_view kind, const std::vector<PositionField>& place,
                           const std::vector<PositionField>& identity);

/// The values of place's names. Throws io::Error for text of another form, and when a field of
/// identity has another value: the position belongs to other data or other options then.
std::vector<std::uint64_t> read_position(std::string_view text, std::string_view kind,
                                         std::initializer_list<std::string_view> place,
                                         const std::vector<PositionField>& identity);

}  // namespace diffattn::data
