// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/data/examples.h"
#include "diffattn/data/packed_rows.h"
#include "diffattn/data/random.h"

// Generated tasks: endless data that depends only on a seed. Each example of a split has its own
// stream of random numbers, so any example can be generated directly.

namespace diffattn::data {

enum class Split : uint64_t { kTrain = 0, kValidation = 1 };

/// A question in a sequence: the prediction at position `asked` should be the token at `answer`.
struct Question {
  int64_t asked = 0;
  int64_t answer = 0;
};

struct TaskSequence {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;  // the answer at each question, kIgnoredLabel elsewhere
  std::vector<Question> questions;
};

/// Generates sequences of one length for a causal model. The model can infer some of their tokens
/// from the tokens before.
class SequenceTask {
 public:
  virtual ~SequenceTask() = default;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t length() const = 0;
  /// Returns sequence number `index` of a split.
  TaskSequence example(uint64_t seed, Split split, uint64_t index) const;

 protected:
  /// Returns an empty sequence with reserved memory for length() tokens.
  TaskSequence empty_sequence() const;

 private:
  virtual TaskSequence make(Random& random) const = 0;
};

/// Needles in a haystack. `needles` facts, each a key and its value, lie in noise. Then come
/// `questions` questions: a mark, the key of a needle, and its value, which is the answer. If
/// questions <= asked, each question is about a different needle. Otherwise each question after the
/// first draws one of `asked` needles.
struct NeedleOptions {
  int64_t length = 512;  // tokens of the haystack
  int64_t needles = 4;
  int64_t asked = 2;  // number of different needles in questions
  int64_t questions = 2;
  /// Position of the needle of the first question, from 0 (front) to 1 (end); random if not set.
  std::optional<double> depth;
  int64_t keys = 64, values = 64, noise = 128;  // numbers of different tokens
  /// Each sequence has between min_needles and `needles` needles; 0: always `needles`. With fewer
  /// than `asked` needles, questions may be about all of them.
  int64_t min_needles = 0;
};
/// Throws io::Error that names an option out of range; so do the other generators below.
std::unique_ptr<SequenceTask> needle_task(const NeedleOptions& options);
/// Returns a readable name of a token: "key7", "val12", "n3" (noise), "?" (mark).
std::string needle_label(int64_t id, const NeedleOptions& options);

/// Associative recall. A sequence is a list of pairs: a key of two tokens and its value. The pairs
/// form `pairs` groups of 1 + `distractors` pairs each, whose keys share their first token. Then
/// come questions as in NeedleOptions, each about a random pair.
struct RecallOptions {
  int64_t pairs = 16;       // different first halves of keys
  int64_t distractors = 1;  // further pairs with the same first half
  int64_t questions = 8;
  int64_t key_parts = 32, values = 64;  // numbers of different tokens
};
std::unique_ptr<SequenceTask> recall_task(const RecallOptions& options);

/// Batches of a SequenceTask, with one sequence per row. The position is the number of sequences
/// that all ranks have taken.
class TaskRows {
 public:
  /// Uses batch_size, seed, rank and world_size of `options`. `all_rows`, which replaces batch_size
  /// unless it is 0, are the rows of one batch on all ranks together. If world_size does not divide
  /// them, some ranks have one row more than others.
  TaskRows(std::shared_ptr<const SequenceTask> task, Split split, const RowOptions& options,
           int64_t all_rows = 0);
  RowBatch next();
  std::string position() const;
  void seek(const std::string& position);

 private:
  std::shared_ptr<const SequenceTask> task_;
  Split split_;
  RowOptions options_;
  int64_t all_rows_;
  uint64_t taken_ = 0;
};

/// Generates examples: a source with a class, or with a target.
class ExampleTask {
 public:
  virtual ~ExampleTask() = default;
  virtual int64_t vocab_size() const = 0;
  /// Returns the number of classes, or 0 for examples with targets.
  virtual int64_t classes() const = 0;
  Example example(uint64_t seed, Split split, uint64_t index) const;
  /// Returns the examples first ... first + count - 1.
  ExampleSet examples(uint64_t seed, Split split, uint64_t first, uint64_t count) const;

 private:
  virtual Example make(Random& random) const = 0;
};

/// Texts of noise words with `signal` words of their class, and fewer words of other classes.
struct NoisyTextOptions {
  int64_t classes = 4;
  int64_t length = 64;
  int64_t signal = 4;
  int64_t misleading = 2;  // words of other classes; fewer than signal
  int64_t words_per_class = 8, noise = 128;
};
std::unique_ptr<ExampleTask> noisy_text_task(const NoisyTextOptions& options);

/// Documents of sentences, each of which begins with a cue. Half of the cues mark sentences of the
/// summary. The summary has these sentences in order, each with a stop token, then the end token.
struct SelectOptions {
  int64_t sentences = 8;
  int64_t selected = 2;
  int64_t words = 6;  // per sentence
  int64_t cues = 8, vocabulary = 128;
};
std::unique_ptr<ExampleTask> select_task(const SelectOptions& options);
/// Returns a readable name of a token: "KEEP2" (a cue of the summary), "skip1" (another cue), "w7",
/// "." (stop), "<s>" (mark), "</s>" (end).
std::string select_label(int64_t id, const SelectOptions& options);

/// Batches of an ExampleTask. The position is the number of examples.
class ExampleRows {
 public:
  /// Uses batch_size, seed, rank and world_size of `options`.
  ExampleRows(std::shared_ptr<const ExampleTask> task, Split split, const RowOptions& options);
  ExampleSet next();
  std::string position() const;
  void seek(const std::string& position);

 private:
  std::shared_ptr<const ExampleTask> task_;
  Split split_;
  RowOptions options_;
  uint64_t taken_ = 0;
};

/// Tokens that all generated tasks share. A task's own tokens start at kTaskTokens.
enum TaskToken : int64_t {
  kTaskPad = 0,
  kTaskMark = 1,
  kTaskStop = 2,
  kTaskEnd = 3,
  kTaskTokens = 4
};

}  // namespace diffattn::data
