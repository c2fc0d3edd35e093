// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// How good answers are: classes and summaries.

namespace diffattn::data {

/// Which classes were taken for which.
class Confusion {
 public:
  explicit Confusion(std::int64_t classes = 0);

  /// Throws std::out_of_range for a class that is not one.
  void add(std::int64_t label, std::int64_t predicted);
  std::int64_t classes() const noexcept { return classes_; }
  std::int64_t total() const noexcept { return total_; }
  /// How often `label` was taken for `predicted`.
  std::int64_t count(std::int64_t label, std::int64_t predicted) const;

  double accuracy() const;
  /// Harmonic mean of precision and recall; 0 where both are.
  double f1(std::int64_t label) const;
  /// Mean of f1 over the classes that occurred, as label or as prediction; 0 when nothing did.
  double macro_f1() const;

 private:
  std::int64_t classes_ = 0, total_ = 0;
  std::vector<std::int64_t> counts_;  // [label, predicted]
};

/// F1 of n-grams (rouge1, rouge2) and of the longest common subsequence (rouge_l).
struct Rouge {
  double rouge1 = 0, rouge2 = 0, rouge_l = 0;

  Rouge& operator+=(const Rouge& other);
};

/// Matches are counted with multiplicity, at most as often as both sides have them. A side without
/// n-grams gives 0 (rouge2 of a single word, also of the same one), but two empty summaries agree
/// in all three: 1.
Rouge rouge(std::span<const std::int64_t> summary, std::span<const std::int64_t> reference);

/// The same over words: runs of ASCII letters and digits, lower case, and of bytes beyond ASCII;
/// no stemming.
Rouge rouge(std::string_view summary, std::string_view reference);

}  // namespace diffattn::data
