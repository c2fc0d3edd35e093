// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
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
  /// The next `size` items, fewer at the end. False when there are none.
  bool next(std::vector<LineItem>& batch, int64_t size);

 private:
  bool next_line(std::string& line, LineItem& item);
  void parse(const std::string& line, LineItem& item) const;

  std::string name_;
  std::optional<io::LineReader> file_;  // none: standard input
  uint64_t number_ = 0;
  std::optional<io::Tokenizer> tokenizer_;
  LineItemOptions options_;
};

/// What became of each item: a JSON object per line on standard output, or all in one at the end.
/// An item with an error, or one that was cut, is a fault: said on standard error and counted.
class LineResults {
 public:
  /// `may_cut`: texts that lost their end are no fault.
  LineResults(bool in_one, bool may_cut) : in_one_(in_one), may_cut_(may_cut) {}

  /// `result` is not looked at where the item has an error.
  void add(const LineItem& item, const nlohmann::ordered_json& result);
  /// `rest` goes with the results where all are in one. Gives the exit code: 1 when there were
  /// faults.
  int finish(const nlohmann::ordered_json& rest);

 private:
  bool in_one_, may_cut_;
  int64_t faults_ = 0;
  nlohmann::ordered_json all_ = nlohmann::ordered_json::array();
};

}  // namespace diffattn::app
