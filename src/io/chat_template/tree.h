// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/chat_template/value.h"

// The tree of a parsed template. It is at most kMaxTreeDepth deep, which bounds the recursion of
// the parser, of the evaluator and of the destructors.

namespace diffattn::io::chat {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Body = std::vector<std::unique_ptr<const Statement>>;

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kConcatenate,
  kEqual,
  kUnequal,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

/// The comments list `parts`, with ? for those that may be null.
enum class ExpressionKind : uint8_t {
  kConstant,   // value
  kName,       // name
  kList,       // items
  kDict,       // key, value, key, value, ...
  kAttribute,  // object; name
  kItem,       // object, index
  kSlice,      // object, first?, end?, step?
  kCall,       // callee, arguments...; named
  kFilter,     // value, arguments...; name, named
  kTest,       // value, arguments...; name
  kNot,        // value
  kNegate,     // value
  kAnd,        // left, right
  kOr,         // left, right
  kCompare,    // operands, one more than operators
  kBinary,     // left, right; operators[0]
  kChoice,     // value, condition, otherwise?
};

struct Expression {
  ExpressionKind kind;
  size_t line;
  std::vector<ExpressionPtr> parts{};
  std::string name{};
  std::vector<std::pair<std::string, ExpressionPtr>> named{};  // keyword arguments
  std::vector<Operator> operators{};
  Value value{};
  size_t depth = 1;
};

/// A branch of an `if`. The `else` has no condition.
struct Branch {
  ExpressionPtr condition;
  Body body;
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // the default, or nullptr
};

struct Macro {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
};

enum class StatementKind : uint8_t {
  kText,      // text
  kOutput,    // value
  kIf,        // branches
  kFor,       // names, value, condition?, body, otherwise
  kSet,       // names, value; or, for `set space.name`, names[0] and attribute
  kSetBlock,  // names[0], body
  kMacro,     // macro
  kBody,      // body, without a scope of its own
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind;
  size_t line;
  std::string text{}, attribute{};
  std::vector<std::string> names{};
  ExpressionPtr value{}, condition{};
  std::vector<Branch> branches{};
  Body body{}, otherwise{};
  Macro macro{};
};

}  // namespace diffattn::io::chat
