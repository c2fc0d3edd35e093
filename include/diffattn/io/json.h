// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace diffattn::io {

/// Bounds on what a document may cost before it is refused.
struct JsonLimits {
  std::size_t max_depth = 64;
  /// Values of all kinds in the document. 2^22 of them in one array are 64 MiB.
  std::size_t max_values = std::size_t{1} << 22;
};

/// Parses one JSON text (RFC 8259) and refuses what lenient parsers let through: duplicate keys,
/// a byte order mark, text after the value, NUL bytes, invalid UTF-8, NaN and Infinity, numbers
/// beyond double, and integers beyond 64 bits (which would silently turn into rounded doubles).
///
/// Keys come back sorted (nlohmann::json, not ordered_json): the sorted map finds a duplicate in
/// logarithmic time where the ordered one searches its whole list, and no format read here gives
/// meaning to key order.
///
/// Throws Error with the byte offset; file is only used for messages.
nlohmann::json parse_json(std::string_view text, const std::string& file,
                          const JsonLimits& limits = {});

/// Reads and parses a file of at most max_bytes bytes.
nlohmann::json read_json(const std::string& path, std::uint64_t max_bytes = std::uint64_t{1} << 20,
                         const JsonLimits& limits = {});

/// text as a JSON string literal, quotes included; nothing when it is not valid UTF-8.
std::optional<std::string> json_literal(std::string_view text);

/// A place in a parsed document that knows its file and key path, so that every complaint reads
/// `config.json: key 'rope_parameters.rope_theta': expected a number in [1, 1e9], got string "x"`.
///
/// Holds a pointer into the document, which must outlive it. All members throw Error.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& root, std::string file);

  /// The member, which must be there; *this must be an object.
  JsonValue at(std::string_view key) const;
  /// The element; *this must be an array that long.
  JsonValue at(std::size_t index) const;
  /// The member, or nothing when it is absent or null; *this must be an object.
  std::optional<JsonValue> find(std::string_view key) const;
  /// Keys of an object, sorted.
  std::vector<std::string> keys() const;
  /// Elements of an array, members of an object.
  std::size_t size() const;
  bool is_null() const noexcept;
  bool is_object() const noexcept;
  bool is_array() const noexcept;
  bool is_string() const noexcept;
  bool is_number() const noexcept;
  bool is_bool() const noexcept;

  bool to_bool() const;
  /// An integer in [min, max]; 3.0 is not one.
  std::int64_t to_int(std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                      std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  std::uint64_t to_uint(std::uint64_t min = 0,
                        std::uint64_t max = std::numeric_limits<std::uint64_t>::max()) const;
  /// A number in [min, max], whole ones included.
  double to_double(double min = std::numeric_limits<double>::lowest(),
                   double max = std::numeric_limits<double>::max()) const;
  /// A string of at most max_bytes bytes.
  const std::string& to_string(std::size_t max_bytes = std::size_t{1} << 16) const;

  /// Throws `<file>: key '<path>': expected <expected>, got <this value>`.
  [[noreturn]] void fail(const std::string& expected) const;
  const nlohmann::json& raw() const noexcept { return *node_; }
  const std::string& path() const noexcept { return path_; }
  const std::string& file() const noexcept { return file_; }

 private:
  JsonValue(const nlohmann::json* node, std::string file, std::string path)
      : node_(node), file_(std::move(file)), path_(std::move(path)) {}
  [[noreturn]] void fail_with(const std::string& path, const std::string& message) const;

  const nlohmann::json* node_;
  std::string file_;
  std::string path_;
};

}  // namespace diffattn::io
