// SPDX-License-Identifier: Apache-2.0
//
// The part of the evaluator that computes expressions.

#include <algorithm>
#include <utility>

#include "diffattn/io/error.h"
#include "io/chat_template/access.h"
#include "io/chat_template/evaluator.h"
#include "io/chat_template/operators.h"
#include "io/chat_template/scopes.h"

namespace diffattn::io::chat {

Value Evaluator::Loop::member(std::string_view name) const {
  const auto index = static_cast<int64_t>(at), count = std::ssize(items);
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(count - index);
  if (name == "revindex0") return Value(count - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == count);
  if (name == "length") return Value(count);
  if (name == "previtem") return index == 0 ? Value() : items[at - 1];
  if (name == "nextitem") return index + 1 == count ? Value() : items[at + 1];
  return Value();
}

Value Evaluator::variable(std::string_view name) {
  for (size_t at = scopes_.size() - 1;; at = scopes_[at].outer) {
    const Scope& scope = scopes_[at];
    const auto found = scope.variables.find(name);
    if (found != scope.variables.end()) return found->second;
    if (scope.loop != nullptr && name == "loop") {
      Dict members;
      for (const char* one : {"index", "index0", "first", "last", "length"}) {
        members.emplace_back(one, scope.loop->member(one));
      }
      return run_.dict(std::move(members));
    }
    if (at == 0) break;
  }
  const Function* function = find_function(name);
  return function == nullptr ? Value() : Value(function);
}

const Evaluator::Loop* Evaluator::loop_of(const Expression& expression) const {
  if (expression.kind != ExpressionKind::kName || expression.name != "loop") return nullptr;
  for (size_t at = scopes_.size() - 1; at > 0; at = scopes_[at].outer) {
    if (scopes_[at].variables.contains("loop")) break;
    if (scopes_[at].loop != nullptr) return scopes_[at].loop;
  }
  return nullptr;
}

Value Evaluator::evaluate(const Expression& expression) {
  const Deeper deeper(*this);
  run_.at(expression.line);
  run_.step();
  switch (expression.kind) {
    case ExpressionKind::kConstant: return expression.value;
    case ExpressionKind::kName: return variable(expression.name);
    case ExpressionKind::kList: return list(expression);
    case ExpressionKind::kDict: return dict(expression);
    case ExpressionKind::kCall: return call(expression);
    case ExpressionKind::kChoice: return choice(expression);
    case ExpressionKind::kCompare: return Value(comparison(expression));
    case ExpressionKind::kAttribute:
      if (const Loop* loop = loop_of(*expression.parts[0])) return loop->member(expression.name);
      break;
    default: break;
  }
  const Value first = part(expression, 0);
  switch (expression.kind) {
    case ExpressionKind::kAttribute: return member(first, expression.name, run_);
    case ExpressionKind::kItem: return item(first, part(expression, 1), run_);
    case ExpressionKind::kSlice:
      return slice(first, {part(expression, 1), part(expression, 2), part(expression, 3)}, run_);
    case ExpressionKind::kFilter:
      return apply_filter(expression.name, first, arguments(expression), run_);
    case ExpressionKind::kTest:
      return Value(apply_test(expression.name, first, arguments(expression), run_));
    case ExpressionKind::kNot: return Value(!first.truth());
    case ExpressionKind::kNegate: return negated(first, run_);
    case ExpressionKind::kAnd: return first.truth() ? part(expression, 1) : first;
    case ExpressionKind::kOr: return first.truth() ? first : part(expression, 1);
    default: return compute(expression.operators[0], first, part(expression, 1), run_);
  }
}

Value Evaluator::part(const Expression& expression, size_t index) {
  const auto& found = expression.parts[index];
  return found == nullptr ? Value() : evaluate(*found);
}

Value Evaluator::choice(const Expression& expression) {
  return part(expression, part(expression, 1).truth() ? 0 : 2);
}

Value Evaluator::list(const Expression& expression) {
  List items;
  for (const auto& item : expression.parts) items.push_back(evaluate(*item));
  return run_.list(std::move(items));
}

Value Evaluator::dict(const Expression& expression) {
  Dict members;
  for (size_t i = 0; i < expression.parts.size(); i += 2) {
    const Value key = part(expression, i);
    const std::string& name = string_of(key, "a string as key of a mapping", run_);
    Value value = part(expression, i + 1);
    run_.make(name.size());
    run_.step(members.size() / 8);
    const auto old = std::find_if(members.begin(), members.end(),
                                  [&](const auto& member) { return member.first == name; });
    if (old != members.end()) {
      old->second = std::move(value);
    } else {
      members.emplace_back(name, std::move(value));
    }
  }
  return run_.dict(std::move(members));
}

bool Evaluator::comparison(const Expression& expression) {
  Value left = part(expression, 0);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = part(expression, i + 1);
    if (!compare(expression.operators[i], left, right, run_)) return false;
    left = std::move(right);
  }
  return true;
}

Arguments Evaluator::arguments(const Expression& expression) {
  Arguments given;
  for (size_t i = 1; i < expression.parts.size(); ++i) {
    given.values.push_back(part(expression, i));
  }
  for (const auto& [name, value] : expression.named) {
    given.named.emplace_back(name, evaluate(*value));
  }
  return given;
}

Value Evaluator::call(const Expression& expression) {
  const Expression& callee = *expression.parts[0];
  Value function;
  if (callee.kind == ExpressionKind::kAttribute) {
    const Value object = evaluate(*callee.parts[0]);
    if (object.space() == nullptr) {
      return call_method(callee.name, object, arguments(expression), run_);
    }
    function = member(object, callee.name, run_);
  } else {
    function = evaluate(callee);
  }
  const Arguments given = arguments(expression);
  run_.at(expression.line);
  if (function.function() != nullptr) return function.function()->call(given, run_);
  if (function.macro() == nullptr) {
    run_.expected("a function" + (callee.name.empty() ? "" : " " + in_quotes(callee.name)),
                  function);
  }
  return call_macro(*function.macro(), given);
}

Value Evaluator::call_macro(const Macro& macro, const Arguments& arguments) {
  std::vector<std::string_view> parameters;
  for (const Parameter& parameter : macro.parameters) parameters.push_back(parameter.name);
  const List values = bound(arguments, parameters, macro.name, run_);
  const Entered scope(scopes_, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const bool use_default = values[i].is_undefined() && parameter.otherwise != nullptr;
    Value value = use_default ? evaluate(*parameter.otherwise) : values[i];
    scopes_.back().variables.insert_or_assign(parameter.name, std::move(value));
  }
  std::string text;
  render(macro.body, text);
  return run_.text(text);
}

}  // namespace diffattn::io::chat
