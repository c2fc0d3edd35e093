// SPDX-License-Identifier: Apache-2.0
#include "compare/haystack.h"

#include <algorithm>
#include <string>

namespace diffattn::compare {

std::vector<analysis::Region> haystack_regions(const data::TaskSequence& sequence,
                                               const data::NeedleOptions& options) {
  const auto id = [&](int64_t at) { return sequence.ids[static_cast<size_t>(at)]; };
  const auto is_key = [&](int64_t at) {
    return id(at) >= data::kTaskTokens && id(at) < data::kTaskTokens + options.keys;
  };
  const auto is_answer = [&](int64_t at) {
    return std::ranges::any_of(
        sequence.questions, [&](const data::Question& question) { return question.answer == at; });
  };
  std::vector<analysis::Region> regions;
  int64_t noise_begin = 0;
  const auto end_noise = [&](int64_t end) {
    if (end > noise_begin) regions.push_back({"noise", "noise", noise_begin, end});
  };
  for (int64_t key = 0; key < options.length; ++key) {
    if (!is_key(key)) continue;
    end_noise(key);
    const int64_t value = key + 1;
    if (is_answer(value)) {
      const std::string name = "answer: " + data::needle_label(id(key), options) + " " +
                               data::needle_label(id(value), options);
      regions.push_back({name, "answer", key, value + 1});
    } else {
      regions.push_back({"other needles", "other", key, value + 1});
    }
    noise_begin = value + 1;
  }
  end_noise(options.length);
  return regions;
}

}  // namespace diffattn::compare
