// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/chat_template/builtins.h"
#include "io/chat_template/run.h"
#include "io/chat_template/tree.h"

namespace diffattn::io::chat {

/// Renders a template once.
class Evaluator {
 public:
  /// `file` and `variables` must outlive the evaluator.
  Evaluator(const std::string& file, const Dict& variables);

  /// Returns the text of a template with these variables. Throws Error.
  std::string render(const Body& body);

 private:
  /// Where the rendering goes on after a statement.
  enum class Flow { kNext, kBreak, kContinue };

  /// A loop that runs.
  struct Loop {
    const List& items;
    size_t at;

    /// Returns loop.name, or an undefined value.
    Value member(std::string_view name) const;
  };

  /// The variables of a loop's body, a macro or the whole template.
  struct Scope {
    std::unordered_map<std::string_view, Value> variables;
    size_t outer;      // the scope to look into next; the first one has none
    const Loop* loop;  // nullptr unless this is the body of a loop
  };

  class Entered;  // a scope for as long as this object lives
  class Deeper;   // counts the recursion

  Flow render(const Body& body, std::string& out);
  Flow render(const Statement& statement, std::string& out);
  Flow render_for(const Statement& statement, std::string& out);
  void write(const Value& value, std::string& out);
  void write(std::string_view text, std::string& out);
  void set(const Statement& statement);
  void assign(const std::vector<std::string>& names, const Value& value);
  List selected_items(const Statement& loop);

  Value evaluate(const Expression& expression);
  Value variable(std::string_view name);
  /// Returns the innermost loop if the expression is the name of it, else nullptr.
  const Loop* loop_of(const Expression& expression) const;
  Value call(const Expression& expression);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  Value choice(const Expression& expression);
  Value list(const Expression& expression);
  Value dict(const Expression& expression);
  bool comparison(const Expression& expression);
  /// Evaluates a part, which is undefined if it was left out.
  Value part(const Expression& expression, size_t index);
  /// Evaluates the arguments of a call, a filter or a test.
  Arguments arguments(const Expression& expression);

  Run run_;
  std::vector<Scope> scopes_;
  size_t depth_ = 0;
};

}  // namespace diffattn::io::chat
