// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/chat_template/lexer.h"
#include "io/chat_template/tree.h"

namespace diffattn::io::chat {

/// Parses a template. Throws Error with the line, what was expected and what came.
Body parse(std::string_view text, const std::string& file);

/// Counts how deep the parser is in nested tags and brackets.
class Nesting {
 public:
  Nesting(size_t& depth, const std::string& file, size_t line);
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  ~Nesting() { --depth_; }

 private:
  size_t& depth_;
};

/// The part of the parser that reads expressions, by recursive descent: one member for each level
/// of precedence, loosest first.
class ExpressionParser {
 protected:
  ExpressionParser(std::vector<Token> tokens, const std::string& file)
      : tokens_(std::move(tokens)), file_(file) {}

  /// Reads `a` or, as a list, `a, b, c`.
  ExpressionPtr tuple(bool with_choice = true);
  ExpressionPtr expression();

  const Token& peek(size_t ahead = 0) const;
  bool is_operator(std::string_view text) const;
  bool is_name(std::string_view text) const;
  /// Takes the token if it is this operator or name.
  bool took_operator(std::string_view text);
  bool took_name(std::string_view text);
  std::string take_name(const char* what);
  void take(TokenKind kind, const char* what);
  void take_operator(std::string_view text);
  void advance() { ++at_; }
  /// Throws Error: expected `what`, got the next token.
  [[noreturn]] void fail(const std::string& what) const;

  const std::string& file() const { return file_; }
  size_t depth_ = 0;

 private:
  ExpressionPtr any_of();
  ExpressionPtr all_of();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr literal();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr filters(ExpressionPtr value);
  ExpressionPtr filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  void arguments(Expression& call);
  bool begins_test_argument() const;

  Expression make(ExpressionKind kind) const;
  /// Checks the depth of a complete node.
  ExpressionPtr finish(Expression node) const;
  ExpressionPtr binary(ExpressionKind kind, ExpressionPtr left, ExpressionPtr right,
                       std::vector<Operator> operators = {}) const;

  std::vector<Token> tokens_;
  const std::string& file_;
  size_t at_ = 0;
};

}  // namespace diffattn::io::chat
