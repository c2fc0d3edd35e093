// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace diffattn::parallel {

/// Tokens [begin, end).
struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Returns the tokens of process number `process` when `processes` share a sequence: one range, or
/// with `zigzag` one range from the beginning and one from the end, so that all processes have the
/// same work under a causal mask. The sizes of ranges differ by at most one; a range may be empty.
std::vector<TokenRange> token_ranges(int64_t tokens, int64_t process, int64_t processes,
                                     bool zigzag);

}  // namespace diffattn::parallel
