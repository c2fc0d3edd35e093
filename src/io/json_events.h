// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// PRIVATE header of the io layer: the one lexer behind the JSON documents and the safetensors
// header. It turns nlohmann's SAX events into strict ones and knows the byte offset of each.

namespace diffattn::io {

/// Derive, implement the value callbacks, call run(). Callbacks report errors by fail(), which
/// throws io::Error; they return true otherwise.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// base_offset is where text begins in the file.
  JsonEvents(std::string_view text, std::string file, std::uint64_t base_offset)
      : text_(text), seen_(text.data()), file_(std::move(file)), base_offset_(base_offset) {}

  void run();

  bool number_float(double value, const std::string& raw) final;
  bool binary(binary_t& value) final;
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) final;

 protected:
  /// A number with a fraction or an exponent, finite.
  virtual bool real(double value) = 0;

  /// Where the token of the current event begins, relative to the text.
  std::size_t token_begin() const;
  /// The token's characters as they stand in the text.
  std::string_view token() const;
  /// Throws `expected <expected>, got <got>` at the current token.
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const;
  [[noreturn]] void fail_at(std::size_t position, const std::string& message) const;
  const std::string& file() const { return file_; }

 private:
  std::string_view text_;
  const char* seen_;  // one past the last character the lexer has taken
  std::string file_;
  std::uint64_t base_offset_;
};

}  // namespace diffattn::io
