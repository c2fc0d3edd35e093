// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace diffattn::io {

/// One `key = value` of a settings file.
struct Setting {
  std::string key;         // with its table: "train.steps"
  std::string value;       // a string without its quotes and escapes, anything else as written
  bool is_string = false;  // else a number, true or false
  std::size_t line = 0;
};

/// Reads the part of TOML that settings need: `[table]` headers, bare and dotted keys, basic and
/// literal strings, decimal numbers, booleans, comments. Everything else (arrays, inline tables,
/// dates, multi-line strings, words without quotes), a key or table given twice, and anything after
/// a value throws Error with the byte's offset and the line.
std::vector<Setting> parse_settings(std::string_view text, const std::string& file);

/// The same of a file of at most 1 MiB.
std::vector<Setting> read_settings(const std::string& path);

}  // namespace diffattn::io
