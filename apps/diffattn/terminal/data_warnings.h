// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

namespace diffattn::app {

/// Warns about bad lines of JSONL data that were skipped. Prints nothing for 0.
inline void warn_of_skipped_lines(uint64_t count) {
  if (count == 0) return;
  fmt::print(stderr, "diffattn: skipped {} bad {}\n", count, count == 1 ? "line" : "lines");
}

/// Warns about texts that were cut to `limit` ("train.seq_len = 128"). Prints nothing for 0.
inline void warn_of_truncated_texts(uint64_t count, const std::string& limit) {
  if (count == 0) return;
  fmt::print(stderr, "diffattn: truncated {} {} to {} tokens\n", count,
             count == 1 ? "text" : "texts", limit);
}

}  // namespace diffattn::app
