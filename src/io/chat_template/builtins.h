// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "io/chat_template/run.h"
#include "io/chat_template/value.h"

// Filters, tests, methods and functions that templates may use.

namespace diffattn::io::chat {

struct Arguments {
  List values;
  Dict named;
};

/// Returns the arguments in the order of the parameters, undefined where none was given. Throws
/// Error for arguments that fit no parameter; `what` names what takes them.
List bound(const Arguments& arguments, const std::vector<std::string_view>& parameters,
           std::string_view what, Run& run);

/// Computes `value | name(arguments)`.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Run& run);
/// Returns whether `value is name(arguments)`.
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Run& run);
/// Computes `value.name(arguments)` of a string or a mapping.
Value call_method(std::string_view name, const Value& value, const Arguments& arguments, Run& run);

/// Replaces the first `most` occurrences of `old`.
Value replaced(std::string_view text, std::string_view old, std::string_view with, size_t most,
               Run& run);
/// Joins the texts of the items.
Value joined_texts(const List& items, std::string_view separator, Run& run);

/// A function that every template can call by its name.
struct Function {
  std::string_view name;
  Value (*call)(const Arguments& arguments, Run& run);
};

/// Returns the function of that name, or nullptr.
const Function* find_function(std::string_view name);

}  // namespace diffattn::io::chat
