// SPDX-License-Identifier: Apache-2.0
//
// Operators by precedence.

#include <algorithm>
#include <utility>

#include "diffattn/io/error.h"
#include "io/chat_template/parser.h"
#include "io/chat_template/run.h"

namespace diffattn::io::chat {

ExpressionPtr ExpressionParser::tuple(bool with_choice) {
  const auto item = [&] { return with_choice ? expression() : any_of(); };
  Expression node = make(ExpressionKind::kList);
  ExpressionPtr first = item();
  if (!is_operator(",")) return first;
  node.parts.push_back(std::move(first));
  while (took_operator(",")) {
    if (is_operator(")") || is_operator("=") || peek().kind == TokenKind::kTagEnd ||
        peek().kind == TokenKind::kOutputEnd) {
      break;
    }
    node.parts.push_back(item());
  }
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::expression() {
  const Nesting nesting(depth_, file_, peek().line);
  ExpressionPtr value = any_of();
  while (is_name("if")) {
    Expression node = make(ExpressionKind::kChoice);
    advance();
    node.parts.push_back(std::move(value));
    node.parts.push_back(any_of());
    node.parts.push_back(took_name("else") ? expression() : nullptr);
    value = finish(std::move(node));
  }
  return value;
}

ExpressionPtr ExpressionParser::any_of() {
  ExpressionPtr left = all_of();
  while (took_name("or")) left = binary(ExpressionKind::kOr, std::move(left), all_of());
  return left;
}

ExpressionPtr ExpressionParser::all_of() {
  ExpressionPtr left = negation();
  while (took_name("and")) left = binary(ExpressionKind::kAnd, std::move(left), negation());
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  const Nesting nesting(depth_, file_, peek().line);
  Expression node = make(ExpressionKind::kNot);
  advance();
  node.parts.push_back(negation());
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, Operator> kComparisons[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kUnequal}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},  {">=", Operator::kGreaterEqual}};
  Expression node = make(ExpressionKind::kCompare);
  node.parts.push_back(sum());
  while (true) {
    const auto* const found =
        std::find_if(std::begin(kComparisons), std::end(kComparisons),
                     [&](const auto& entry) { return is_operator(entry.first); });
    if (found != std::end(kComparisons)) {
      node.operators.push_back(found->second);
      advance();
    } else if (took_name("in")) {
      node.operators.push_back(Operator::kIn);
    } else if (is_name("not") && peek(1).kind == TokenKind::kName && peek(1).text == "in") {
      at_ += 2;
      node.operators.push_back(Operator::kNotIn);
    } else {
      break;
    }
    node.parts.push_back(sum());
  }
  if (node.operators.empty()) return std::move(node.parts.front());
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const Operator sign = is_operator("+") ? Operator::kAdd : Operator::kSubtract;
    advance();
    left = binary(ExpressionKind::kBinary, std::move(left), concatenation(), {sign});
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr left = product();
  while (took_operator("~")) {
    left = binary(ExpressionKind::kBinary, std::move(left), product(), {Operator::kConcatenate});
  }
  return left;
}

ExpressionPtr ExpressionParser::product() {
  static constexpr std::pair<std::string_view, Operator> kProducts[] = {
      {"*", Operator::kMultiply},
      {"/", Operator::kDivide},
      {"//", Operator::kFloorDivide},
      {"%", Operator::kModulo}};
  ExpressionPtr left = unary();
  while (true) {
    const auto* const found =
        std::find_if(std::begin(kProducts), std::end(kProducts),
                     [&](const auto& entry) { return is_operator(entry.first); });
    if (found == std::end(kProducts)) return left;
    advance();
    left = binary(ExpressionKind::kBinary, std::move(left), unary(), {found->second});
  }
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Nesting nesting(depth_, file_, peek().line);
  ExpressionPtr value;
  if (is_operator("-")) {
    Expression node = make(ExpressionKind::kNegate);
    advance();
    node.parts.push_back(unary(false));
    value = finish(std::move(node));
  } else if (took_operator("+")) {
    value = unary(false);
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

Expression ExpressionParser::make(ExpressionKind kind) const {
  return Expression{.kind = kind, .line = peek().line};
}

ExpressionPtr ExpressionParser::finish(Expression node) const {
  for (const ExpressionPtr& part : node.parts) {
    if (part != nullptr) node.depth = std::max(node.depth, part->depth + 1);
  }
  for (const auto& [name, part] : node.named) node.depth = std::max(node.depth, part->depth + 1);
  if (node.depth > kMaxTreeDepth) {
    fail_at(file_, node.line,
            "expected an expression at most " + std::to_string(kMaxTreeDepth) +
                " operations deep, got a deeper one");
  }
  return std::make_unique<const Expression>(std::move(node));
}

ExpressionPtr ExpressionParser::binary(ExpressionKind kind, ExpressionPtr left, ExpressionPtr right,
                                       std::vector<Operator> operators) const {
  Expression node = make(kind);
  node.line = left->line;
  node.parts.push_back(std::move(left));
  node.parts.push_back(std::move(right));
  node.operators = std::move(operators);
  return finish(std::move(node));
}

}  // namespace diffattn::io::chat
