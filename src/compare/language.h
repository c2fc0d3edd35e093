// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "compare/measure.h"
#include "train/tasks/evaluator.h"

namespace diffattn::compare {

// Names of the metrics of language models; see docs/tasks.md.
inline constexpr char kBitsPerByte[] = "bits_per_byte";
inline constexpr char kLossAt[] = "loss_at.";  // followed by the end of a range of lengths
inline constexpr char kTest[] = "test.";       // followed by a kind of text and ".bits_per_byte"
inline constexpr char kTokensToBaseline[] = "tokens_to_baseline";
inline constexpr char kTokensToBaselineShare[] = "tokens_to_baseline.share";

/// A text that no model has seen, of one kind.
struct TestText {
  std::string kind, path;
};

/// Returns the file, or each file of the folder by its name without suffix. Throws io::Error if
/// there is none, or if two have the same name.
std::vector<TestText> test_texts(const std::string& path);

/// Throws io::Error if a model of `config` cannot read one of the texts.
void check_test_texts(const std::vector<TestText>& texts, const train::RunConfig& config);

/// Returns a text that differs if the tokens of one of the texts differ.
std::string fingerprint_of(const std::vector<TestText>& texts, const io::Tokenizer& tokenizer,
                           const train::RunConfig& config);

/// Adds the loss by position in the context, which `valid` has measured, the bits per byte of all
/// texts, and the loss on the two copies of a repeated sequence to the metrics of `result`.
void measure_language(Trained& trained, const train::Evaluator& valid,
                      const std::vector<TestText>& texts, RunResult& result);

/// Adds to each run how many tokens it needed to reach the final validation loss of the baseline
/// with the same seed, and their share of all its tokens. Interpolates linearly between
/// validations. A run that never reached that loss gets no number.
void add_tokens_to_baseline(Comparison& comparison);

}  // namespace diffattn::compare
