// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/evaluator.h"

#include <utility>

#include "diffattn/io/error.h"
#include "io/chat_template/access.h"
#include "io/chat_template/scopes.h"

namespace diffattn::io::chat {

Evaluator::Evaluator(const std::string& file, const Dict& variables) : run_(file) {
  scopes_.push_back({.variables = {}, .outer = 0, .loop = nullptr});
  for (const auto& [name, value] : variables) scopes_[0].variables.emplace(name, value);
}

std::string Evaluator::render(const Body& body) {
  std::string out;
  render(body, out);
  return out;
}

Evaluator::Flow Evaluator::render(const Body& body, std::string& out) {
  const Deeper deeper(*this);
  for (const auto& statement : body) {
    const Flow flow = render(*statement, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::render(const Statement& statement, std::string& out) {
  run_.at(statement.line);
  run_.step();
  switch (statement.kind) {
    case StatementKind::kText: write(statement.text, out); break;
    case StatementKind::kOutput: write(evaluate(*statement.value), out); break;
    case StatementKind::kIf:
      for (const Branch& branch : statement.branches) {
        if (branch.condition == nullptr || evaluate(*branch.condition).truth()) {
          return render(branch.body, out);
        }
      }
      break;
    case StatementKind::kFor: return render_for(statement, out);
    case StatementKind::kSet: set(statement); break;
    case StatementKind::kSetBlock: {
      std::string text;
      Flow flow = Flow::kNext;
      {
        const Entered scope(scopes_);
        flow = render(statement.body, text);
      }
      assign(statement.names, run_.text(text));
      return flow;
    }
    case StatementKind::kMacro:
      scopes_.back().variables.insert_or_assign(statement.macro.name, Value(&statement.macro));
      break;
    case StatementKind::kBody: return render(statement.body, out);
    case StatementKind::kBreak: return Flow::kBreak;
    case StatementKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

void Evaluator::write(std::string_view text, std::string& out) {
  run_.make(text.size());
  out += text;
}

void Evaluator::write(const Value& value, std::string& out) {
  if (value.text() != nullptr) return write(*value.text(), out);
  out += text_of(value, run_);
}

List Evaluator::selected_items(const Statement& loop) {
  List items = items_of(evaluate(*loop.value), run_);
  if (loop.condition == nullptr) return items;
  List selected;
  for (const Value& item : items) {
    const Entered scope(scopes_);
    run_.step();
    assign(loop.names, item);
    if (evaluate(*loop.condition).truth()) selected.push_back(item);
  }
  return selected;
}

Evaluator::Flow Evaluator::render_for(const Statement& statement, std::string& out) {
  const List items = selected_items(statement);
  if (items.empty()) return render(statement.otherwise, out);
  Loop loop{items, 0};
  for (; loop.at < items.size(); ++loop.at) {
    const Entered scope(scopes_);
    run_.at(statement.line);
    run_.step();
    scopes_.back().loop = &loop;
    assign(statement.names, items[loop.at]);
    if (render(statement.body, out) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Evaluator::set(const Statement& statement) {
  const Value value = evaluate(*statement.value);
  if (statement.attribute.empty()) return assign(statement.names, value);
  const Value object = variable(statement.names[0]);
  if (object.space() == nullptr) {
    run_.expected("a namespace in " + in_quotes(statement.names[0]) + " to set an attribute of",
                  object);
  }
  run_.make(sizeof(Namespace::value_type));
  object.space()->insert_or_assign(statement.attribute, value);
}

void Evaluator::assign(const std::vector<std::string>& names, const Value& value) {
  auto& variables = scopes_.back().variables;
  if (names.size() == 1) {
    variables.insert_or_assign(names[0], value);
    return;
  }
  const List items = items_of(value, run_);
  if (items.size() != names.size()) {
    run_.fail("expected " + std::to_string(names.size()) + " values for as many variables, got " +
              std::to_string(items.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) variables.insert_or_assign(names[i], items[i]);
}

}  // namespace diffattn::io::chat
