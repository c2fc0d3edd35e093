// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "io/chat_template/run.h"
#include "io/chat_template/value.h"

// Parts of values. Each function throws Error for types that have no such parts.

namespace diffattn::io::chat {

/// Returns value.name, or an undefined value.
Value member(const Value& value, std::string_view name, Run& run);
/// Returns the attribute of an attribute: "function.name".
Value member_at(const Value& value, std::string_view path, Run& run);
/// Returns value[index], or an undefined value.
Value item(const Value& value, const Value& index, Run& run);

/// Bounds and step as written; undefined where left out.
struct Slice {
  Value first, end, step;
};
Value slice(const Value& value, const Slice& slice, Run& run);

/// Returns what a loop over the value visits: items, keys or characters. An undefined value has
/// none.
List items_of(const Value& value, Run& run);
int64_t length_of(const Value& value, Run& run);
/// Returns `part in whole`.
bool contains(const Value& whole, const Value& part, Run& run);

/// Returns an integer; true and false are 1 and 0.
int64_t integer_of(const Value& value, const char* what, Run& run);
const std::string& string_of(const Value& value, const char* what, Run& run);

}  // namespace diffattn::io::chat
