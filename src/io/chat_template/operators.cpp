// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/operators.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "io/chat_template/access.h"

namespace diffattn::io::chat {
namespace {

double number_of(const Value& value) {
  if (value.real() != nullptr) return *value.real();
  if (value.boolean() != nullptr) return *value.boolean() ? 1.0 : 0.0;
  return static_cast<double>(*value.integer());
}

[[noreturn]] void refuse(const Value& a, const Value& b, Run& run) {
  run.fail(std::string("expected operands that fit together, got ") + a.type_name() + " and " +
           b.type_name());
}

/// Division rounds down, as in Python.
int64_t floor_quotient(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_result(Operator operation, int64_t a, int64_t b, Run& run) {
  int64_t result = 0;
  bool overflow = false;
  switch (operation) {
    case Operator::kAdd: overflow = __builtin_add_overflow(a, b, &result); break;
    case Operator::kSubtract: overflow = __builtin_sub_overflow(a, b, &result); break;
    case Operator::kMultiply: overflow = __builtin_mul_overflow(a, b, &result); break;
    case Operator::kDivide: return Value(static_cast<double>(a) / static_cast<double>(b));
    default:  // b == -1 would overflow for the smallest integer
      if (b == -1) {
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        if (operation == Operator::kModulo) return Value(int64_t{0});
      } else {
        result = floor_quotient(a, b);
        if (operation == Operator::kModulo) result = a - result * b;
      }
  }
  if (overflow) run.fail("expected an integer of 64 bits, got a larger one");
  return Value(result);
}

Value number_result(Operator operation, const Value& a, const Value& b, Run& run) {
  const bool divides = operation == Operator::kDivide || operation == Operator::kFloorDivide ||
                       operation == Operator::kModulo;
  const double x = number_of(a), y = number_of(b);
  if (divides && y == 0.0) run.fail("expected a divisor, got 0");
  if (a.real() == nullptr && b.real() == nullptr) {
    return integer_result(operation, integer_of(a, "an integer", run),
                          integer_of(b, "an integer", run), run);
  }
  switch (operation) {
    case Operator::kAdd: return Value(x + y);
    case Operator::kSubtract: return Value(x - y);
    case Operator::kMultiply: return Value(x * y);
    case Operator::kDivide: return Value(x / y);
    case Operator::kFloorDivide: return Value(std::floor(x / y));
    default: return Value(x - y * std::floor(x / y));
  }
}

/// Returns the text or list `value` this many times.
Value repeated(const Value& value, int64_t count, Run& run) {
  const auto times = static_cast<size_t>(std::clamp<int64_t>(count, 0, int64_t{kMaxMadeBytes}));
  if (value.text() != nullptr) {
    run.make(value.text()->size() * times);  // both factors are at most 2^26
    std::string text;
    text.reserve(value.text()->size() * times);
    if (!value.text()->empty()) {
      for (size_t i = 0; i < times; ++i) text += *value.text();
    }
    return run.text(text);
  }
  run.make(value.list()->size() * times * sizeof(Value));
  List items;
  if (!value.list()->empty()) {
    for (size_t i = 0; i < times; ++i) {
      items.insert(items.end(), value.list()->begin(), value.list()->end());
    }
  }
  return run.list(std::move(items));
}

Value joined(const Value& a, const Value& b, Run& run) {
  if (a.text() != nullptr && b.text() != nullptr) {
    run.make(a.text()->size() + b.text()->size());
    return run.text(*a.text() + *b.text());
  }
  if (a.list() == nullptr || b.list() == nullptr) refuse(a, b, run);
  run.make((a.list()->size() + b.list()->size()) * sizeof(Value));
  List items = *a.list();
  items.insert(items.end(), b.list()->begin(), b.list()->end());
  return run.list(std::move(items));
}

/// Returns whether a < b, or a <= b.
bool less(const Value& a, const Value& b, bool or_equal, Run& run) {
  if (a.is_number() && b.is_number()) {
    if (a.real() == nullptr && b.real() == nullptr) {
      const int64_t x = integer_of(a, "an integer", run), y = integer_of(b, "an integer", run);
      return or_equal ? x <= y : x < y;
    }
    return or_equal ? number_of(a) <= number_of(b) : number_of(a) < number_of(b);
  }
  if (a.text() == nullptr || b.text() == nullptr) refuse(a, b, run);
  run.read(std::min(a.text()->size(), b.text()->size()));
  return or_equal ? *a.text() <= *b.text() : *a.text() < *b.text();
}

}  // namespace

Value compute(Operator operation, const Value& a, const Value& b, Run& run) {
  if (operation == Operator::kConcatenate) return run.text(text_of(a, run) + text_of(b, run));
  if (a.is_number() && b.is_number()) return number_result(operation, a, b, run);
  if (operation == Operator::kAdd) return joined(a, b, run);
  if (operation == Operator::kMultiply) {
    const bool right = b.text() != nullptr || b.list() != nullptr;
    const Value& value = right ? b : a;
    const Value& count = right ? a : b;
    const bool fits = (value.text() != nullptr || value.list() != nullptr) &&
                      (count.integer() != nullptr || count.boolean() != nullptr);
    if (!fits) refuse(a, b, run);
    return repeated(value, integer_of(count, "an integer", run), run);
  }
  refuse(a, b, run);
}

bool compare(Operator operation, const Value& a, const Value& b, Run& run) {
  switch (operation) {
    case Operator::kEqual: return equal(a, b, run);
    case Operator::kUnequal: return !equal(a, b, run);
    case Operator::kLess: return less(a, b, false, run);
    case Operator::kLessEqual: return less(a, b, true, run);
    case Operator::kGreater: return less(b, a, false, run);
    case Operator::kGreaterEqual: return less(b, a, true, run);
    case Operator::kIn: return contains(b, a, run);
    default: return !contains(b, a, run);
  }
}

Value negated(const Value& value, Run& run) {
  if (!value.is_number()) run.expected("a number behind '-'", value);
  if (value.real() != nullptr) return Value(-*value.real());
  return integer_result(Operator::kSubtract, 0, integer_of(value, "an integer", run), run);
}

}  // namespace diffattn::io::chat
