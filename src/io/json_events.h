// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// The lexer for JSON documents and safetensors headers. It makes nlohmann's SAX events strict and
// knows the byte offset of each.

namespace diffattn::io {

/// A base class for parsers: implement the value callbacks, then call run(). A callback returns
/// true or calls fail(), which throws io::Error.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// base_offset is the byte offset of text in the file.
  JsonEvents(std::string_view text, std::string file, uint64_t base_offset)
      : text_(text), seen_(text.data()), file_(std::move(file)), base_offset_(base_offset) {}

  void run();

  bool number_float(double value, const std::string& raw) final;
  bool binary(binary_t& value) final;
  bool parse_error(size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) final;

 protected:
  /// Receives a finite number that is written with a fraction or an exponent.
  virtual bool real(double value) = 0;

  /// Returns the offset in the text of the token of the current event.
  size_t token_begin() const;
  /// Returns the characters of that token.
  std::string_view token() const;
  /// Throws `expected <expected>, got <got>` at the current token.
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const;
  [[noreturn]] void fail_at(size_t position, const std::string& message) const;
  const std::string& file() const { return file_; }

 private:
  std::string_view text_;
  const char* seen_;  // one past the last character that the lexer has read
  std::string file_;
  uint64_t base_offset_;
};

}  // namespace diffattn::io
