// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace diffattn::io {

/// One `key = value` of a settings file.
struct Setting {
  std::string key;  // with its table: "train.steps"
  /// A string without quotes and escapes; a number as written, but hexadecimal, octal and binary
  /// integers in decimal; true or false.
  std::string value;
  bool is_string = false;
  size_t line = 0;  // counts from 1
};

/// Parses a TOML document of settings and returns them in the order of the file.
///
/// Throws Error with the byte offset and the line if the text is not TOML, defines a key or table
/// twice, or holds what no setting has: arrays, inline tables, dates, keys with other characters
/// than letters, digits, '_' and '-', or more than 256 dots in a line.
std::vector<Setting> parse_settings(std::string_view text, const std::string& file);

/// Reads and parses a file. Throws Error as parse_settings() does, and if the file has more than
/// 1 MiB.
std::vector<Setting> read_settings(const std::string& path);

}  // namespace diffattn::io
