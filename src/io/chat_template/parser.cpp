// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "diffattn/io/error.h"
#include "io/chat_template/run.h"

namespace diffattn::io::chat {

Nesting::Nesting(size_t& depth, const std::string& file, size_t line) : depth_(depth) {
  if (depth == kMaxTreeDepth) {
    fail_at(file, line,
            "expected tags and brackets at most " + std::to_string(kMaxTreeDepth) +
                " deep, got deeper ones");
  }
  ++depth;
}

const Token& ExpressionParser::peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];  // the last one is kEnd
}

bool ExpressionParser::is_operator(std::string_view text) const {
  return peek().kind == TokenKind::kOperator && peek().text == text;
}

bool ExpressionParser::is_name(std::string_view text) const {
  return peek().kind == TokenKind::kName && peek().text == text;
}

bool ExpressionParser::took_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  advance();
  return true;
}

bool ExpressionParser::took_name(std::string_view text) {
  if (!is_name(text)) return false;
  advance();
  return true;
}

std::string ExpressionParser::take_name(const char* what) {
  if (peek().kind != TokenKind::kName) fail(what);
  std::string name = peek().text;
  advance();
  return name;
}

void ExpressionParser::take(TokenKind kind, const char* what) {
  if (peek().kind != kind) fail(what);
  advance();
}

void ExpressionParser::take_operator(std::string_view text) {
  if (!took_operator(text)) fail(in_quotes(text));
}

void ExpressionParser::fail(const std::string& what) const {
  const Token& token = peek();
  std::string got;
  switch (token.kind) {
    case TokenKind::kEnd: got = "the end of the template"; break;
    case TokenKind::kOutputEnd: got = "'}}'"; break;
    case TokenKind::kTagEnd: got = "'%}'"; break;
    case TokenKind::kString: got = "the string " + in_quotes(token.text); break;
    default: got = in_quotes(token.text);
  }
  fail_at(file_, token.line, "expected " + what + ", got " + got);
}

namespace {

class TemplateParser : ExpressionParser {
 public:
  TemplateParser(std::string_view text, const std::string& file)
      : ExpressionParser(tokens_of(text, file), file) {}

  Body run() { return body({}); }

 private:
  using Ends = std::initializer_list<std::string_view>;

  /// Reads statements up to a tag with one of these names, and the name. Without names, reads to
  /// the end of the template.
  Body body(Ends ends) {
    const Nesting nesting(depth_, file(), peek().line);
    Body statements;
    while (true) {
      const Token& token = peek();
      if (token.kind == TokenKind::kText) {
        auto text = Statement{.kind = StatementKind::kText, .line = token.line, .text = token.text};
        statements.push_back(std::make_unique<const Statement>(std::move(text)));
        advance();
      } else if (token.kind == TokenKind::kOutputBegin) {
        statements.push_back(output());
      } else if (token.kind == TokenKind::kTagBegin) {
        advance();
        if (std::any_of(ends.begin(), ends.end(), [&](auto name) { return is_name(name); })) {
          return statements;
        }
        statements.push_back(tag());
      } else if (ends.size() == 0) {
        return statements;
      } else {
        fail("'{% " + std::string(ends.begin()[ends.size() - 1]) + " %}'");
      }
    }
  }

  Body body_to(std::string_view end) {
    Body statements = body({end});
    end_tag();
    return statements;
  }

  /// Takes the name of a tag without arguments, and its end.
  void end_tag() {
    advance();
    take(TokenKind::kTagEnd, "'%}'");
  }

  using StatementPtr = std::unique_ptr<const Statement>;

  Statement make(StatementKind kind) const { return Statement{.kind = kind, .line = peek().line}; }
  static StatementPtr finish(Statement statement) {
    return std::make_unique<const Statement>(std::move(statement));
  }

  StatementPtr output() {
    Statement statement = make(StatementKind::kOutput);
    advance();
    statement.value = tuple();
    take(TokenKind::kOutputEnd, "'}}'");
    return finish(std::move(statement));
  }

  StatementPtr tag() {
    if (is_name("if")) return if_tag();
    if (is_name("for")) return for_tag();
    if (is_name("set")) return set_tag();
    if (is_name("macro")) return macro_tag();
    if (is_name("break") || is_name("continue")) return jump_tag();
    if (is_name("generation")) {  // marks what the model writes, for training
      Statement statement = make(StatementKind::kBody);
      end_tag();
      statement.body = body_to("endgeneration");
      return finish(std::move(statement));
    }
    fail("if, for, set, macro, break, continue or generation");
  }

  StatementPtr if_tag() {
    Statement statement = make(StatementKind::kIf);
    advance();
    bool open = true;
    for (bool first = true; open; first = false) {
      Branch branch;
      if (first || took_name("elif")) {
        branch.condition = expression();
      } else {
        advance();  // else
        open = false;
      }
      take(TokenKind::kTagEnd, "'%}'");
      branch.body = open ? body({"elif", "else", "endif"}) : body({"endif"});
      statement.branches.push_back(std::move(branch));
      open = open && !is_name("endif");
    }
    end_tag();
    return finish(std::move(statement));
  }

  /// Reads `a` or `a, b`, with or without parentheses.
  std::vector<std::string> targets() {
    const bool bracket = took_operator("(");
    std::vector<std::string> names;
    do {
      names.push_back(take_name("the name of a variable"));
    } while (took_operator(","));
    if (bracket) take_operator(")");
    return names;
  }

  StatementPtr for_tag() {
    Statement statement = make(StatementKind::kFor);
    advance();
    statement.names = targets();
    if (!took_name("in")) fail("'in'");
    statement.value = tuple(false);
    if (took_name("if")) statement.condition = expression();
    take(TokenKind::kTagEnd, "'%}'");
    ++loops_;
    statement.body = body({"else", "endfor"});
    --loops_;
    if (is_name("else")) {
      end_tag();
      statement.otherwise = body({"endfor"});
    }
    end_tag();
    return finish(std::move(statement));
  }

  StatementPtr set_tag() {
    Statement statement = make(StatementKind::kSet);
    advance();
    statement.names = targets();
    if (statement.names.size() == 1 && took_operator(".")) {
      statement.attribute = take_name("the name of an attribute");
    }
    if (took_operator("=")) {
      statement.value = tuple();
      take(TokenKind::kTagEnd, "'%}'");
      return finish(std::move(statement));
    }
    if (statement.names.size() > 1 || !statement.attribute.empty()) take_operator("=");
    statement.kind = StatementKind::kSetBlock;
    take(TokenKind::kTagEnd, "'=' or '%}'");
    statement.body = body_to("endset");
    return finish(std::move(statement));
  }

  StatementPtr macro_tag() {
    Statement statement = make(StatementKind::kMacro);
    advance();
    Macro& macro = statement.macro;
    macro.name = take_name("the name of a macro");
    take_operator("(");
    while (!is_operator(")")) {
      Parameter parameter{.name = take_name("the name of a parameter"), .otherwise = nullptr};
      if (took_operator("=")) parameter.otherwise = expression();
      macro.parameters.push_back(std::move(parameter));
      if (!is_operator(")")) take_operator(",");
    }
    advance();
    take(TokenKind::kTagEnd, "'%}'");
    const size_t loops = std::exchange(loops_, 0);
    macro.body = body_to("endmacro");
    loops_ = loops;
    return finish(std::move(statement));
  }

  StatementPtr jump_tag() {
    Statement statement = make(is_name("break") ? StatementKind::kBreak : StatementKind::kContinue);
    if (loops_ == 0) fail("a loop around it");
    end_tag();
    return finish(std::move(statement));
  }

  size_t loops_ = 0;  // loops around the statement
};

}  // namespace

Body parse(std::string_view text, const std::string& file) {
  return TemplateParser(text, file).run();
}

}  // namespace diffattn::io::chat
