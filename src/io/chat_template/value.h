// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// The values of a template: those of Python that chat templates use.

namespace diffattn::io::chat {

class Run;
class Value;
struct Macro;
struct Function;

using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in order of insertion
using Namespace = std::map<std::string, Value, std::less<>>;

struct Undefined {};
struct None {};

/// An immutable value, cheap to copy. Copies share the content.
///
/// Only a namespace can change, so only a namespace could contain itself. Values therefore refer to
/// namespaces, which the Run owns. Lists and mappings nest at most kMaxDepth deep: this bounds the
/// recursion of every function that walks through a value, and of the destructor.
class Value {
 public:
  static constexpr size_t kMaxDepth = 64;

  Value() = default;  // undefined
  explicit Value(None none) : content_(none) {}
  explicit Value(bool value) : content_(value) {}
  explicit Value(int64_t value) : content_(value) {}
  explicit Value(double value) : content_(value) {}
  explicit Value(std::string text);
  explicit Value(const char* text) : Value(std::string(text)) {}
  /// Throws std::length_error if the value would be deeper than kMaxDepth; Run::list() and
  /// Run::dict() report it as an Error.
  explicit Value(List items);
  explicit Value(Dict members);
  explicit Value(Namespace* space) : content_(space) {}
  explicit Value(const Macro* macro) : content_(macro) {}
  explicit Value(const Function* function) : content_(function) {}

  bool is_undefined() const { return holds<Undefined>(); }
  bool is_none() const { return holds<None>(); }
  bool is_callable() const { return holds<const Macro*>() || holds<const Function*>(); }
  /// True for integers, floats and, as in Python, booleans.
  bool is_number() const { return holds<bool>() || holds<int64_t>() || holds<double>(); }

  // Each returns nullptr if the value has another type.
  const bool* boolean() const { return std::get_if<bool>(&content_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&content_); }
  const double* real() const { return std::get_if<double>(&content_); }
  const std::string* text() const { return pointer<std::string>(); }
  const List* list() const { return pointer<List>(); }
  const Dict* dict() const { return pointer<Dict>(); }
  Namespace* space() const { return plain<Namespace*>(); }
  const Macro* macro() const { return plain<const Macro*>(); }
  const Function* function() const { return plain<const Function*>(); }

  bool truth() const;
  /// Nesting of lists and mappings: 0 for any other value.
  size_t depth() const { return depth_; }
  /// Names the type for messages: "a string", "an undefined value".
  const char* type_name() const;

 private:
  template <typename T>
  bool holds() const {
    return std::holds_alternative<T>(content_);
  }
  template <typename T>
  const T* pointer() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&content_);
    return held == nullptr ? nullptr : held->get();
  }
  template <typename T>
  T plain() const {
    const T* held = std::get_if<T>(&content_);
    return held == nullptr ? nullptr : *held;
  }
  void deepen(const Value& part);

  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*, const Macro*,
               const Function*>
      content_;
  uint8_t depth_ = 0;
};

/// Returns the member of a mapping, or nullptr.
const Value* find(const Dict& members, std::string_view key);

/// Compares as Python's ==: 1 == 1.0 == true, and mappings compare without regard to order.
bool equal(const Value& a, const Value& b, Run& run);

/// Returns what {{ value }} writes: Python's str(), but nothing for an undefined value. Throws
/// Error for values that have no text, such as macros.
std::string text_of(const Value& value, Run& run);

struct JsonStyle {
  int64_t indent;  // on one line if it is negative
  bool ensure_ascii;
};

/// Returns what json.dumps() of Python returns.
std::string json_of(const Value& value, const JsonStyle& style, Run& run);

}  // namespace diffattn::io::chat
