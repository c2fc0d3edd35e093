// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "compare/measure.h"

namespace diffattn::compare {

/// One validation example that all models of a comparison read.
struct ShownExample {
  train::Batch batch;           // one row, on the CPU
  analysis::Sequence sequence;  // tokens, regions and question of the maps
  /// The input in words and what is right. Without lines, the example is not read out.
  analysis::ReadExample read;
  std::vector<std::string> right;  // the words that a model should answer or write
};

/// Returns a validation example of the task that the models were trained for.
ShownExample shown_example(const Trained& trained);

/// Returns the words of tokens: names in a generated task, else their text.
std::vector<std::string> words_of(const std::vector<int64_t>& ids, const Trained& trained);

}  // namespace diffattn::compare
