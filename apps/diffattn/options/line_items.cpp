// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/line_items.h"

#include <fmt/core.h>

#include <iostream>

#include "diffattn/io/error.h"
#include "diffattn/io/json.h"

namespace diffattn::app {

LineItems::LineItems(const std::string& path, std::optional<io::Tokenizer> tokenizer,
                     LineItemOptions options)
    : name_(path == "-" ? "standard input" : path),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)) {
  if (path != "-") file_.emplace(path);
}

bool LineItems::next_line(std::string& line, LineItem& item) {
  ++number_;
  item = LineItem{.line = number_};
  if (!file_) {
    if (!std::getline(std::cin, line)) return false;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.size() > io::kMaxLineBytes) {
      item.error = fmt::format("expected at most {} bytes, got {}", io::kMaxLineBytes, line.size());
    }
    return true;
  }
  try {
    return file_->next(line);
  } catch (const io::Error& error) {
    // The reader stands still after a failed read; after a bad line it has moved on.
    if (!error.message().starts_with("line ")) throw;
    item.error = error.message();
    return true;
  }
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
  for (LineItem item; std::ssize(batch) < size && next(item);) batch.push_back(std::move(item));
  return !batch.empty();
}

void LineItems::parse(const std::string& line, LineItem& item) const {
  const nlohmann::json document = io::parse_json(line, name_);
  const io::JsonValue root(document, name_);
  if (const auto ids = root.find("ids"); ids && !root.find(options_.text_key)) {
    for (size_t i = 0; i < ids->size(); ++i) {
      item.ids.push_back(ids->at(i).to_int(0, options_.vocab_size - 1));
    }
  } else {
    const io::JsonValue text = root.at(options_.text_key);
    if (!tokenizer_) {
      throw io::Error(name_, "expected key 'ids', because the model has no tokenizer.json");
    }
    const std::string& value = text.to_string(io::kMaxLineBytes);
    if (value.empty()) text.fail("text");
    const auto encoded = tokenizer_->encode(value);
    item.ids.assign(encoded.begin(), encoded.end());
    for (const int64_t id : item.ids) {
      if (id < options_.vocab_size) continue;
      throw io::Error(name_, fmt::format("token of tokenizer.json: expected an id in [0, {}], the "
                                         "vocabulary of the model, got {}",
                                         options_.vocab_size - 1, id));
    }
  }
  if (item.ids.empty()) throw io::Error(name_, "expected at least one token, got none");
  item.tokens = std::ssize(item.ids);
  if (item.tokens > options_.max_tokens) {
    item.ids.resize(static_cast<size_t>(options_.max_tokens));
  }
  if (const auto expected = root.find(options_.expected_key)) {
    item.expected = expected->is_string() ? expected->to_string(io::kMaxLineBytes)
                                          : std::to_string(expected->to_int());
  }
}

void LineResults::add(const LineItem& item, const Json& result) {
  if (!item.error.empty()) {
    fmt::print(stderr, "diffattn: line {}: {}\n", item.line, item.error);
    ++faults_;
  } else if (item.truncated() && !may_truncate_) {
    fmt::print(stderr,
               "diffattn: line {}: expected at most {} tokens, got {}; the model read only the "
               "beginning (--truncate allows this)\n",
               item.line, item.ids.size(), item.tokens);
    ++faults_;
  }
  const Json shown = item.error.empty() ? result : Json{{"line", item.line}, {"error", item.error}};
  if (in_one_) {
    all_.push_back(shown);
  } else {
    fmt::print("{}\n", json_text(shown, -1));
    std::fflush(stdout);
  }
}

int LineResults::finish(const Json& rest) {
  if (in_one_) {
    Json result{{"results", all_}};
    result.update(rest);
    result["faults"] = faults_;
    fmt::print("{}\n", json_text(result));
  }
  if (faults_ > 0) {
    fmt::print(stderr, "diffattn: {}\n",
               faults_ == 1 ? "1 line has a fault" : fmt::format("{} lines have faults", faults_));
  }
  return faults_ > 0 ? 1 : 0;
}

}  // namespace diffattn::app
