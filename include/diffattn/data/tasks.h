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

// Tasks that are generated, not read: endless, and a function of a seed alone. Example number i of
// a split is drawn from its own stream of random numbers, so that any example can be made at once.

namespace diffattn::data {

enum class Split : std::uint64_t { kTrain = 0, kValidation = 1 };

/// A question in a sequence: what a model says at `asked` is right if it is the token at `answer`.
struct Question {
  std::int64_t asked = 0;
  std::int64_t answer = 0;
};

struct TaskSequence {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> labels;  // kIgnoredLabel but where an answer is asked for
  std::vector<Question> questions;
};

/// A task for a causal model: sequences of one length, some tokens of which can be known from what
/// stands before.
class SequenceTask {
 public:
  virtual ~SequenceTask() = default;
  virtual std::int64_t vocab_size() const = 0;
  virtual std::int64_t length() const = 0;
  TaskSequence example(std::uint64_t seed, Split split, std::uint64_t index) const;

 protected:
  /// With room for length() tokens.
  TaskSequence empty_sequence() const;

 private:
  virtual TaskSequence make(Random& random) const = 0;
};

/// Needles in a haystack: `needles` facts (a key and its value next to each other) somewhere among
/// noise, then `questions` times a mark and the key of one of `asked` of them, whose value is the
/// answer and follows. Up to `asked` questions differ; with more of them, each draws its needle.
struct NeedleOptions {
  std::int64_t length = 512;  // of the haystack
  std::int64_t needles = 4;
  std::int64_t asked = 2;  // different needles that questions are about
  std::int64_t questions = 2;
  /// Where the needle of the first question lies, from 0 (front) to 1; anywhere without it.
  std::optional<double> depth;
  std::int64_t keys = 64, values = 64, noise = 128;  // kinds of tokens
  /// Each sequence has between min_needles and needles of them; 0: always needles. Fewer needles
  /// than `asked`: all are asked for.
  std::int64_t min_needles = 0;
};
std::unique_ptr<SequenceTask> needle_task(const NeedleOptions& options);
/// A token of such a sequence as people read it: "key7", "val12", "n3" (noise), "?" (the mark).
std::string needle_label(std::int64_t id, const NeedleOptions& options);

/// Pairs of two-token keys and values, one after the other; for each pair that is asked for there
/// are `distractors` that share one half of its key. Then the questions, as above.
struct RecallOptions {
  std::int64_t pairs = 16;  // those that may be asked for; each brings its distractors
  std::int64_t distractors = 1;
  std::int64_t questions = 8;
  std::int64_t key_parts = 32, values = 64;  // kinds of tokens
};
std::unique_ptr<SequenceTask> recall_task(const RecallOptions& options);

/// Batches of a SequenceTask; every row is one segment. Its position is the number of sequences.
class TaskRows {
 public:
  /// batch_size, seed, rank and world_size of options count.
  TaskRows(std::shared_ptr<const SequenceTask> task, Split split, const RowOptions& options);
  RowBatch next();
  std::string position() const;
  void seek(const std::string& position);

 private:
  std::shared_ptr<const SequenceTask> task_;
  Split split_;
  RowOptions options_;
  std::uint64_t taken_ = 0;
};

/// A task of examples: a source with a class, or with a target.
class ExampleTask {
 public:
  virtual ~ExampleTask() = default;
  virtual std::int64_t vocab_size() const = 0;
  /// 0 for tasks with targets.
  virtual std::int64_t classes() const = 0;
  Example example(std::uint64_t seed, Split split, std::uint64_t index) const;
  /// Examples first ... first + count - 1.
  ExampleSet examples(std::uint64_t seed, Split split, std::uint64_t first,
                      std::uint64_t count) const;

 private:
  virtual Example make(Random& random) const = 0;
};

/// Texts of noise words with `signal` words of their class among them, and fewer of other classes.
struct NoisyTextOptions {
  std::int64_t classes = 4;
  std::int64_t length = 64;
  std::int64_t signal = 4;
  std::int64_t misleading = 2;  // words of other classes; below signal
  std::int64_t words_per_class = 8, noise = 128;
};
std::unique_ptr<ExampleTask> noisy_text_task(const NoisyTextOptions& options);

/// Documents of sentences, each behind a cue. Half of the cues mark what belongs into the summary:
/// these sentences, in order, each with a stop; then the end.
struct SelectOptions {
  std::int64_t sentences = 8;
  std::int64_t selected = 2;
  std::int64_t words = 6;  // of a sentence
  std::int64_t cues = 8, vocabulary = 128;
};
std::unique_ptr<ExampleTask> select_task(const SelectOptions& options);

/// Batches of an ExampleTask. Its position is the number of examples.
class ExampleRows {
 public:
  /// batch_size, seed, rank and world_size of options count.
  ExampleRows(std::shared_ptr<const ExampleTask> task, Split split, const RowOptions& options);
  ExampleSet next();
  std::string position() const;
  void seek(const std::string& position);

 private:
  std::shared_ptr<const ExampleTask> task_;
  Split split_;
  RowOptions options_;
  std::uint64_t taken_ = 0;
};

/// Tokens that every generated task has; kinds of its own follow.
enum TaskToken : std::int64_t {
  kTaskPad = 0,
  kTaskMark = 1,
  kTaskStop = 2,
  kTaskEnd = 3,
  kTaskTokens = 4
};

}  // namespace diffattn::data
