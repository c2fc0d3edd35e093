// SPDX-License-Identifier: Apache-2.0
//
// Operands of operators: literals and names, with what follows them: attributes, subscripts, calls,
// filters and tests.

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "io/chat_template/parser.h"

namespace diffattn::io::chat {

ExpressionPtr ExpressionParser::primary() {
  const Token& token = peek();
  if (token.kind == TokenKind::kName) {
    static constexpr std::string_view kReserved[] = {"if", "else", "in", "is", "and", "or", "not"};
    if (std::find(std::begin(kReserved), std::end(kReserved), token.text) != std::end(kReserved)) {
      fail("a value");
    }
    Expression node = make(ExpressionKind::kName);
    node.name = token.text;
    if (token.text == "true" || token.text == "True") {
      node.kind = ExpressionKind::kConstant;
      node.value = Value(true);
    } else if (token.text == "false" || token.text == "False") {
      node.kind = ExpressionKind::kConstant;
      node.value = Value(false);
    } else if (token.text == "none" || token.text == "None") {
      node.kind = ExpressionKind::kConstant;
      node.value = Value(None());
    }
    advance();
    return finish(std::move(node));
  }
  if (took_operator("(")) {
    if (is_operator(")")) {
      advance();
      return finish(make(ExpressionKind::kList));
    }
    ExpressionPtr value = tuple();
    take_operator(")");
    return value;
  }
  if (is_operator("[")) return list();
  if (is_operator("{")) return dict();
  return literal();
}

ExpressionPtr ExpressionParser::literal() {
  Expression node = make(ExpressionKind::kConstant);
  const std::string& text = peek().text;
  switch (peek().kind) {
    case TokenKind::kString: {
      std::string whole;
      for (; peek().kind == TokenKind::kString; advance()) whole += peek().text;
      node.value = Value(std::move(whole));
      return finish(std::move(node));
    }
    case TokenKind::kInteger: {
      int64_t value = 0;
      const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
      if (result.ec != std::errc()) fail("an integer of 64 bits");
      node.value = Value(value);
      break;
    }
    case TokenKind::kFloat: node.value = Value(std::strtod(text.c_str(), nullptr)); break;
    default: fail("a value");
  }
  advance();
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::list() {
  Expression node = make(ExpressionKind::kList);
  take_operator("[");
  while (!is_operator("]")) {
    node.parts.push_back(expression());
    if (!is_operator("]")) take_operator(",");
  }
  take_operator("]");
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::dict() {
  Expression node = make(ExpressionKind::kDict);
  take_operator("{");
  while (!is_operator("}")) {
    node.parts.push_back(expression());
    take_operator(":");
    node.parts.push_back(expression());
    if (!is_operator("}")) take_operator(",");
  }
  take_operator("}");
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    if (took_operator(".")) {
      Expression node = make(ExpressionKind::kAttribute);
      node.name = take_name("the name of an attribute");
      node.parts.push_back(std::move(value));
      value = finish(std::move(node));
    } else if (is_operator("[")) {
      value = subscript(std::move(value));
    } else if (is_operator("(")) {
      Expression node = make(ExpressionKind::kCall);
      node.parts.push_back(std::move(value));
      arguments(node);
      value = finish(std::move(node));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
  Expression node = make(ExpressionKind::kItem);
  take_operator("[");
  node.parts.push_back(std::move(value));
  const auto part = [&] {
    const bool none = is_operator(":") || is_operator("]");
    node.parts.push_back(none ? nullptr : expression());
  };
  part();
  if (is_operator(":")) {
    node.kind = ExpressionKind::kSlice;
    for (int i = 0; i < 2; ++i) {
      if (took_operator(":")) {
        part();
      } else {
        node.parts.push_back(nullptr);
      }
    }
  } else if (node.parts.back() == nullptr) {
    fail("an index");
  }
  take_operator("]");
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value) {
  while (true) {
    if (took_operator("|")) {
      value = filter(std::move(value));
    } else if (took_name("is")) {
      value = test(std::move(value));
    } else if (is_operator("(")) {  // the result of a filter can be called, but no template does it
      fail("an operator");
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr value) {
  Expression node = make(ExpressionKind::kFilter);
  node.name = take_name("the name of a filter");
  node.parts.push_back(std::move(value));
  if (is_operator("(")) arguments(node);
  return finish(std::move(node));
}

bool ExpressionParser::begins_test_argument() const {
  static constexpr std::string_view kOthers[] = {"else", "or", "and", "if", "in", "is", "not"};
  switch (peek().kind) {
    case TokenKind::kName:
      return std::find(std::begin(kOthers), std::end(kOthers), peek().text) == std::end(kOthers);
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat: return true;
    default: return is_operator("[") || is_operator("{");
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  const bool negated = took_name("not");
  Expression node = make(ExpressionKind::kTest);
  node.name = take_name("the name of a test");
  node.parts.push_back(std::move(value));
  if (is_operator("(")) {
    arguments(node);
  } else if (begins_test_argument()) {
    node.parts.push_back(postfix(primary()));
  }
  if (!node.named.empty()) fail("a test without keyword arguments");
  ExpressionPtr result = finish(std::move(node));
  if (!negated) return result;
  Expression opposite = make(ExpressionKind::kNot);
  opposite.parts.push_back(std::move(result));
  return finish(std::move(opposite));
}

void ExpressionParser::arguments(Expression& call) {
  take_operator("(");
  while (!is_operator(")")) {
    if (peek().kind == TokenKind::kName && peek(1).kind == TokenKind::kOperator &&
        peek(1).text == "=") {
      std::string name = take_name("a name");
      advance();
      call.named.emplace_back(std::move(name), expression());
    } else if (call.named.empty()) {
      call.parts.push_back(expression());
    } else {
      fail("a keyword argument");
    }
    if (!is_operator(")")) take_operator(",");
  }
  take_operator(")");
}

}  // namespace diffattn::io::chat
