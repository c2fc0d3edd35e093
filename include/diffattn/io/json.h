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

/// Limits on the size of a document, against inputs that exhaust memory or the stack.
struct JsonLimits {
  size_t max_depth = 64;
  /// Values of all kinds in the document. An array of 2^22 values takes 64 MiB.
  size_t max_values = size_t{1} << 22;
};

/// Parses one JSON text (RFC 8259). It is stricter than most parsers and rejects
///   - duplicate keys, a byte order mark and text after the value;
///   - NUL bytes and invalid UTF-8;
///   - NaN, Infinity and numbers beyond double;
///   - integers beyond 64 bits, which would silently become rounded doubles.
///
/// The result is nlohmann::json, not ordered_json. Its keys are sorted, so the parser finds a
/// duplicate key in logarithmic time. No format that we read gives meaning to key order.
///
/// Throws Error with the byte offset; file is only used for messages.
nlohmann::json parse_json(std::string_view text, const std::string& file,
                          const JsonLimits& limits = {});

/// Reads and parses a file of at most max_bytes bytes.
nlohmann::json read_json(const std::string& path, uint64_t max_bytes = uint64_t{1} << 20,
                         const JsonLimits& limits = {});

/// Returns text as a JSON string literal with its quotes, or nullopt if it is not valid UTF-8.
std::optional<std::string> json_literal(std::string_view text);

/// A value in a parsed document that knows its file and key path, so every error message reads
/// `config.json: key 'rope_parameters.rope_theta': expected a number in [1, 1e9], got string "x"`.
///
/// Holds a pointer into the document, which must outlive it. All members throw Error.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& root, std::string file);

  /// Returns a member. Throws if *this is not an object or has no such key.
  JsonValue at(std::string_view key) const;
  /// Returns an element. Throws if *this is not an array or is shorter.
  JsonValue at(size_t index) const;
  /// Returns a member, or nullopt if it is absent or null. Throws if *this is not an object.
  std::optional<JsonValue> find(std::string_view key) const;
  /// Returns the keys of an object, sorted.
  std::vector<std::string> keys() const;
  /// Returns the number of elements of an array or of members of an object.
  size_t size() const;
  bool is_null() const noexcept;
  bool is_object() const noexcept;
  bool is_array() const noexcept;
  bool is_string() const noexcept;
  bool is_number() const noexcept;
  bool is_bool() const noexcept;

  bool to_bool() const;
  /// Returns an integer in [min, max]. Throws for 3.0, which is not written as an integer.
  int64_t to_int(int64_t min = std::numeric_limits<int64_t>::min(),
                 int64_t max = std::numeric_limits<int64_t>::max()) const;
  uint64_t to_uint(uint64_t min = 0, uint64_t max = std::numeric_limits<uint64_t>::max()) const;
  /// Returns a number in [min, max], written as an integer or not.
  double to_double(double min = std::numeric_limits<double>::lowest(),
                   double max = std::numeric_limits<double>::max()) const;
  /// Returns a string of at most max_bytes bytes.
  const std::string& to_string(size_t max_bytes = size_t{1} << 16) const;

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
