// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/diffattn/terminal/print.h"

namespace diffattn::app {

/// Warns about bad lines of JSONL data that were skipped. Prints nothing for 0.
inline void warn_of_skipped_lines(uint64_t count) {
  if (count == 0) return;
  print_note("diffattn: skipped {} bad {}\n", count, count == 1 ? "line" : "lines");
}

/// Names files of a data folder that were skipped because they are not text.
inline void warn_of_skipped_files(const std::vector<std::string>& files) {
  if (files.empty()) return;
  constexpr size_t kNamed = 5;
  std::string names;
  for (size_t i = 0; i < std::min(files.size(), kNamed); ++i) {
    names += (i > 0 ? ", " : "") + files[i];
  }
  if (files.size() > kNamed) names += fmt::format(" and {} more", files.size() - kNamed);
  print_note("diffattn: skipped {} {} that {} not text: {}\n", files.size(),
             files.size() == 1 ? "file" : "files", files.size() == 1 ? "is" : "are", names);
}

/// Warns about texts that were cut to `limit` ("train.seq_len = 128"). Prints nothing for 0.
inline void warn_of_truncated_texts(uint64_t count, const std::string& limit) {
  if (count == 0) return;
  print_note("diffattn: truncated {} {} to {} tokens\n", count, count == 1 ? "text" : "texts",
             limit);
}

}  // namespace diffattn::app
