// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/chat_template/run.h"
#include "io/chat_template/tree.h"

namespace diffattn::io::chat {

/// Computes `a operation b`. Throws Error for types that Python refuses, and where Python's
/// integers would grow beyond 64 bits.
Value compute(Operator operation, const Value& a, const Value& b, Run& run);
bool compare(Operator operation, const Value& a, const Value& b, Run& run);
Value negated(const Value& value, Run& run);

}  // namespace diffattn::io::chat
