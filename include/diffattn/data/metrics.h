// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace diffattn::data {

/// A confusion matrix.
class Confusion {
 public:
  explicit Confusion(int64_t classes = 0);

  /// Adds a prediction `times` times. Throws diffattn::Error for a class outside [0, classes).
  void add(int64_t label, int64_t predicted, int64_t times = 1);
  int64_t classes() const noexcept { return classes_; }
  int64_t total() const noexcept { return total_; }
  /// Returns how often the model predicted `predicted` for `label`.
  int64_t count(int64_t label, int64_t predicted) const;

  double accuracy() const;
  /// Returns the harmonic mean of precision and recall, or 0 if both are 0.
  double f1(int64_t label) const;
  /// Returns the mean of f1 over the classes that occurred as label or prediction, or 0 if none
  /// did.
  double macro_f1() const;

 private:
  int64_t classes_ = 0, total_ = 0;
  std::vector<int64_t> counts_;  // [label, predicted]
};

/// F1 scores of unigrams, bigrams and the longest common subsequence.
struct Rouge {
  double rouge1 = 0, rouge2 = 0, rouge_l = 0;

  Rouge& operator+=(const Rouge& other);
};

/// Computes ROUGE over token ids. An n-gram matches as often as both texts contain it. The score is
/// 0 if a text has no n-gram (rouge2 of a single word), but 1 for two empty texts.
Rouge rouge(std::span<const int64_t> summary, std::span<const int64_t> reference);

/// Computes ROUGE over words. A word is a run of ASCII letters, digits and bytes from 0x80 on.
/// ASCII letters compare in lower case; there is no stemming.
Rouge rouge(std::string_view summary, std::string_view reference);

}  // namespace diffattn::data
