// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/run.h"

#include <stdexcept>
#include <utility>

#include "diffattn/io/error.h"

namespace diffattn::io::chat {
namespace {

// A string on the heap, its reference count and the place of the Value in a list.
constexpr size_t kTextOverhead = 96;

}  // namespace

void fail_at(const std::string& file, size_t line, const std::string& message) {
  throw Error(file, "line " + std::to_string(line) + ": " + message);
}

void Run::step(size_t count) {
  steps_ += count;
  if (steps_ > kMaxSteps) {
    fail("expected a template that ends within " + std::to_string(kMaxSteps) + " steps, got more");
  }
}

void Run::make(size_t bytes) {
  if (bytes > kMaxMadeBytes - made_) {
    fail("expected a template that makes at most " + std::to_string(kMaxMadeBytes) +
         " bytes, got more");
  }
  made_ += bytes;
  read(bytes);
}

Value Run::text(std::string_view text) {
  make(text.size() + kTextOverhead);
  return Value(std::string(text));
}

Value Run::list(List items) {
  make(items.size() * sizeof(Value) + sizeof(List));
  try {
    return Value(std::move(items));
  } catch (const std::length_error&) {
    fail("expected lists at most " + std::to_string(Value::kMaxDepth) + " deep, got deeper ones");
  }
}

Value Run::dict(Dict members) {
  size_t bytes = sizeof(Dict);
  for (const auto& [key, value] : members) bytes += sizeof(Dict::value_type) + key.size();
  make(bytes);
  try {
    return Value(std::move(members));
  } catch (const std::length_error&) {
    fail("expected mappings at most " + std::to_string(Value::kMaxDepth) +
         " deep, got deeper ones");
  }
}

Value Run::space(Namespace members) {
  make((members.size() + 1) * sizeof(Namespace::value_type) * 2);
  spaces_.push_back(std::move(members));
  return Value(&spaces_.back());
}

void Run::expected(const std::string& what, const Value& got) const {
  fail("expected " + what + ", got " + got.type_name());
}

}  // namespace diffattn::io::chat
