// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/line_items.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "apps/diffattn/options/input_stream.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "diffattn/io/error.h"
#include "diffattn/io/json.h"

namespace diffattn::app {

LineItems::LineItems(const std::string& path, std::optional<io::Tokenizer> tokenizer,
                     LineItemOptions options)
    : lines_(input_lines(path)), tokenizer_(std::move(tokenizer)), options_(std::move(options)) {}

bool LineItems::next_line(std::string& line, LineItem& item) {
  item = LineItem{};
  try {
    if (!lines_.next(line)) return false;
  } catch (const io::Error& error) {
    // An error that names the line is about a line that is too long; other reads have failed.
    const std::string number = fmt::format("line {}: ", lines_.number());
    if (!error.message().starts_with(number)) throw;
    item.error = error.message().substr(number.size());
  }
  item.line = lines_.number();
  return true;
}

bool LineItems::next(LineItem& item) {
  std::string line;
  while (next_line(line, item)) {
    if (item.error.empty() && line.find_first_not_of(" \t") == std::string::npos) continue;
    if (!item.error.empty()) return true;
    try {
      parse(line, item);
    } catch (const io::Error& error) {
      item.error = error.offset() ? fmt::format("byte {}: {}", *error.offset(), error.message())
                                  : error.message();
    }
    return true;
  }
  return false;
}

bool LineItems::next(std::vector<LineItem>& batch, int64_t size) {
  batch.clear();
  if (failure_) std::rethrow_exception(failure_);
  try {
    for (LineItem item; std::ssize(batch) < size && next(item);) batch.push_back(std::move(item));
  } catch (const io::Error&) {
    if (batch.empty()) throw;
    failure_ = std::current_exception();  // the lines before the failed read get their answers
  }
  return !batch.empty();
}

void LineItems::parse(const std::string& line, LineItem& item) const {
  const std::string& name = lines_.name();
  const nlohmann::json document = io::parse_json(line, name);
  const io::JsonValue root(document, name);
  if (const auto ids = root.find("ids"); ids && !root.find(options_.text_key)) {
    item.tokens = static_cast<int64_t>(ids->size());
    for (size_t i = 0; i < ids->size(); ++i) {
      const int64_t id = ids->at(i).to_int(0, options_.vocab_size - 1);
      if (std::cmp_less(i, options_.max_tokens)) item.ids.push_back(id);
    }
  } else {
    const io::JsonValue text = root.at(options_.text_key);
    if (!tokenizer_) {
      throw io::Error(name, "expected key 'ids', because the model has no tokenizer.json");
    }
    const std::string& value = text.to_string(io::kMaxLineBytes);
    if (value.empty()) text.fail("text");
    const auto encoded = tokenizer_->encode(value);
    item.tokens = std::ssize(encoded);
    item.ids.assign(encoded.begin(), encoded.begin() + std::min(item.tokens, options_.max_tokens));
    for (const int64_t id : encoded) {
      if (id < options_.vocab_size) continue;
      throw io::Error(name, fmt::format("token of tokenizer.json: expected an id in [0, {}], the "
                                        "vocabulary of the model, got {}",
                                        options_.vocab_size - 1, id));
    }
  }
  if (item.tokens == 0) throw io::Error(name, "expected at least one token, got none");
  if (const auto expected = root.find(options_.expected_key)) {
    item.expected = expected->is_string() ? expected->to_string(io::kMaxLineBytes)
                                          : std::to_string(expected->to_int());
  }
}

void LineResults::add(const LineItem& item, const Json& result) {
  if (!item.error.empty()) {
    print_note("diffattn: line {}: {}\n", item.line, item.error);
    ++faults_;
  } else if (item.truncated() && !may_truncate_) {
    print_note(
        "diffattn: line {}: expected at most {} tokens, got {}; the model read only the "
        "beginning (--truncate allows this)\n",
        item.line, item.ids.size(), item.tokens);
    ++faults_;
  }
  const Json shown = item.error.empty() ? result : Json{{"line", item.line}, {"error", item.error}};
  if (in_one_) {
    all_.push_back(shown);
  } else {
    print_json(shown, -1);
    std::fflush(stdout);
  }
}

int LineResults::finish(const Json& rest) {
  if (in_one_) {
    Json result{{"results", all_}};
    result.update(rest);
    result["faults"] = faults_;
    print_json(result);
  }
  if (faults_ > 0) {
    print_note("diffattn: {}\n",
               faults_ == 1 ? "1 line has a fault" : fmt::format("{} lines have faults", faults_));
  }
  return faults_ > 0 ? 1 : 0;
}

}  // namespace diffattn::app
