// SPDX-License-Identifier: Apache-2.0
#include "diffattn/parallel/token_ranges.h"

#include <torch/library.h>

namespace diffattn::parallel {

std::vector<TokenRange> token_ranges(int64_t tokens, int64_t process, int64_t processes,
                                     bool zigzag) {
  const int64_t pieces = zigzag ? 2 * processes : processes;
  const auto piece = [&](int64_t i) {
    return TokenRange{tokens * i / pieces, tokens * (i + 1) / pieces};
  };
  if (!zigzag) return {piece(process)};
  return {piece(process), piece(pieces - 1 - process)};
}

// python/diffattn/parallel.py computes the same without the full library; a test compares them.
TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  m.def("token_ranges(int tokens, int process, int processes, bool zigzag) -> int[]",
        [](int64_t tokens, int64_t process, int64_t processes, bool zigzag) {
          std::vector<int64_t> ends;
          for (const TokenRange& range : token_ranges(tokens, process, processes, zigzag)) {
            ends.insert(ends.end(), {range.begin, range.end});
          }
          return ends;
        });
}

}  // namespace diffattn::parallel
