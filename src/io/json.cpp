// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "io/json_events.h"

namespace diffattn::io {
namespace {

using nlohmann::json;

/// Builds the document. open_ holds the open containers, outermost first. Pointers to them stay
/// valid because only the innermost one grows.
class DocumentBuilder final : public JsonEvents {
 public:
  DocumentBuilder(std::string_view text, const std::string& file, const JsonLimits& limits)
      : JsonEvents(text, file, 0), limits_(limits) {}

  json take() { return std::move(root_); }

  bool null() override { return add(json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return add(json(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(json(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(json(value)) != nullptr; }
  bool string(string_t& value) override { return add(json(std::move(value))) != nullptr; }
  bool start_object(size_t) override { return descend(json::object()); }
  bool start_array(size_t) override { return descend(json::array()); }
  bool end_object() override { return ascend(); }
  bool end_array() override { return ascend(); }

  bool key(string_t& name) override {
    auto [place, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name, nullptr);
    if (!is_new) fail("unique keys", "a second " + in_quotes(name));
    member_ = &place->second;
    return true;
  }

 protected:
  bool real(double value) override { return add(json(value)) != nullptr; }

 private:
  json* add(json&& value) {
    if (++values_ > limits_.max_values) {
      fail("at most " + std::to_string(limits_.max_values) + " values", "more");
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    auto& elements = open_.back()->get_ref<json::array_t&>();
    elements.push_back(std::move(value));
    return &elements.back();
  }

  bool descend(json&& container) {
    if (open_.size() >= limits_.max_depth) {
      fail("nesting no deeper than " + std::to_string(limits_.max_depth), "one level more");
    }
    open_.push_back(add(std::move(container)));
    return true;
  }

  bool ascend() {
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  size_t values_ = 0;
  json root_;
  std::vector<json*> open_;
  json* member_ = nullptr;
};

}  // namespace

json parse_json(std::string_view text, const std::string& file, const JsonLimits& limits) {
  DocumentBuilder builder(text, file, limits);
  builder.run();
  return builder.take();
}

json read_json(const std::string& path, uint64_t max_bytes, const JsonLimits& limits) {
  return parse_json(read_text(path, max_bytes), path, limits);
}

std::optional<std::string> json_literal(std::string_view text) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {  // dump() throws it for ill-formed UTF-8 only
    return std::nullopt;
  }
}

}  // namespace diffattn::io
