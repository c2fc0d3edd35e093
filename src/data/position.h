// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

// Positions in a stream of batches, as JSON objects of integers.

namespace diffattn::data {

struct PositionField {
  std::string_view name;
  uint64_t value;
};

/// Returns {"kind": kind, "a": 1, ...} with the fields of `place` and `identity`.
std::string write_position(std::string_view kind, const std::vector<PositionField>& place,
                           const std::vector<PositionField>& identity);

/// Returns the values of the fields in `place`. Throws io::Error for other text, and if a field of
/// `identity` differs: then the position belongs to other data or options.
std::vector<uint64_t> read_position(std::string_view text, std::string_view kind,
                                    std::initializer_list<std::string_view> place,
                                    const std::vector<PositionField>& identity);

}  // namespace diffattn::data
