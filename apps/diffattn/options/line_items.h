// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "apps/diffattn/terminal/json_text.h"
#include "diffattn/io/jsonl.h"
#include "diffattn/io/tokenizer.h"

namespace diffattn::app {

/// One line of input as token ids, or the error that makes it unusable.
struct LineItem {
  uint64_t line = 0;                         // counted from 1
  std::vector<int64_t> ids = {};             // those that the model reads
  std::optional<std::string> expected = {};  // label or summary, if the line has one
  int64_t tokens = 0;                        // length before truncation
  std::string error = {};                    // empty: the line can be used

  bool truncated() const { return tokens > static_cast<int64_t>(ids.size()); }
};

struct LineItemOptions {
  std::string text_key;      // "text"
  std::string expected_key;  // "label"
  int64_t max_tokens = 0;    // longer texts are truncated
  int64_t vocab_size = 0;
};

/// Reads lines of JSON objects from a file, a pipe or, for "-", standard input. Each line holds a
/// text, or `ids` for models without a tokenizer. A line that cannot be used becomes an item with
/// an error. Empty lines are skipped.
class LineItems {
 public:
  LineItems(const std::string& path, std::optional<io::Tokenizer> tokenizer,
            LineItemOptions options);

  /// Reads the next item. Returns false at the end; throws io::Error if a read fails.
  bool next(LineItem& item);
  /// Reads up to `size` items. Returns false at the end. If a read fails after some items, returns
  /// these first and throws io::Error in the next call.
  bool next(std::vector<LineItem>& batch, int64_t size);

 private:
  bool next_line(std::string& line, LineItem& item);
  void parse(const std::string& line, LineItem& item) const;

  io::LineReader lines_;
  std::exception_ptr failure_;  // of a read after the items that next() has returned
  std::optional<io::Tokenizer> tokenizer_;
  LineItemOptions options_;
};

/// Prints the result of each item to standard output: one JSON object per line, or one object with
/// all of them at the end. Reports items with an error, and truncated ones, on standard error and
/// counts them as faults.
class LineResults {
 public:
  /// With `may_truncate`, truncated texts are no faults.
  LineResults(bool in_one, bool may_truncate) : in_one_(in_one), may_truncate_(may_truncate) {}

  /// Ignores `result` if the item has an error.
  void add(const LineItem& item, const Json& result);
  /// Prints the one object with `rest` beside the results. Returns the exit code: 1 after faults.
  int finish(const Json& rest);

 private:
  bool in_one_, may_truncate_;
  int64_t faults_ = 0;
  Json all_ = Json::array();
};

}  // namespace diffattn::app
