// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/io/jsonl.h"
#include "diffattn/io/tokenizer.h"

namespace diffattn::app {

/// One line of input, ready for a model, or what is wrong with it.
struct LineItem {
  uint64_t line = 0;  // counted from 1
  std::vector<int64_t> ids = {};
  std::optional<std::string> expected = {};  // the label or summary, where the line has one
  int64_t tokens = 0;                        // before what is too long was cut
  std::string error = {};

  bool truncated() const { return tokens > static_cast<int64_t>(ids.size()); }
};

struct LineItemOptions {
  std::string text_key;      // "text"
  std::string expected_key;  // "label"
  int64_t max_tokens = 0;    // longer texts lose their end
  int64_t vocab_size = 0;
};

/// Lines of JSON objects, from a file or, for "-", from standard input. Each has a text or, for
/// models without a tokenizer, `ids`. A line that cannot be used gives an item with an error; empty
/// lines are passed over.
class LineItems {
 public:
  LineItems(const std::string& path, std::optional<io::Tokenizer> tokenizer,
            LineItemOptions options);

  /// False at the end. Throws io::Error when the file cannot be read.
  bool next(LineItem& item);

 private:
  bool next_line(std::string& line, LineItem& item);
  void parse(const std::string& line, LineItem& item) const;

  std::string name_;
  std::optional<io::LineReader> file_;  // none: standard input
  uint64_t number_ = 0;
  std::optional<io::Tokenizer> tokenizer_;
  LineItemOptions options_;
};

/// The tokenizer of a model folder, or nothing when it has none.
std::optional<io::Tokenizer> tokenizer_in(const std::string& folder);

}  // namespace diffattn::app
