// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "data/tasks/draw.h"
#include "diffattn/data/tasks.h"

namespace diffattn::data {
namespace {

/// Appends a question about the value at `answer`: mark, key, then the value itself.
void ask(TaskSequence& sequence, std::initializer_list<int64_t> key, int64_t answer) {
  sequence.ids.push_back(kTaskMark);
  sequence.ids.insert(sequence.ids.end(), key);
  const int64_t value = sequence.ids[static_cast<size_t>(answer)];
  sequence.labels.resize(sequence.ids.size(), kIgnoredLabel);
  sequence.labels.back() = value;
  sequence.questions.push_back({std::ssize(sequence.ids) - 1, answer});
  sequence.ids.push_back(value);
  sequence.labels.push_back(kIgnoredLabel);
}

class NeedleTask final : public SequenceTask {
 public:
  explicit NeedleTask(const NeedleOptions& options) : o_(options) {
    expect_option("needles", o_.needles, 1, kMostOfATask);
    expect_option("length", o_.length, 2 * o_.needles, kMostOfATask);
    expect_option("asked", o_.asked, 1, o_.needles);
    expect_option("min_needles", o_.min_needles, 0, o_.needles);
    expect_option("questions", o_.questions, 1, kMostOfATask);
    expect_option("keys", o_.keys, o_.needles, kMostOfATask);
    expect_option("values", o_.values, 2, kMostOfATask);
    expect_option("noise", o_.noise, 1, kMostOfATask);
    if (o_.depth && !(*o_.depth >= 0 && *o_.depth <= 1)) {
      throw io::Error("depth", "expected a number in [0, 1], got " + std::to_string(*o_.depth));
    }
  }
  int64_t vocab_size() const override { return kTaskTokens + o_.keys + o_.values + o_.noise; }
  int64_t length() const override { return o_.length + 3 * o_.questions; }

 private:
  TaskSequence make(Random& random) const override {
    TaskSequence sequence = empty_sequence();
    sequence.ids.resize(static_cast<size_t>(o_.length));
    for (int64_t& id : sequence.ids) {
      id = kTaskTokens + o_.keys + o_.values + draw(random, o_.noise);
    }
    const int64_t needles = o_.min_needles == 0
                                ? o_.needles
                                : o_.min_needles + draw(random, o_.needles - o_.min_needles + 1);
    const int64_t asked = std::min(o_.asked, needles);
    const std::vector<int64_t> keys = draw_different(random, o_.keys, needles);
    const std::vector<int64_t> places = needle_places(random, needles);
    for (int64_t n = 0; n < needles; ++n) {
      const auto at = static_cast<size_t>(places[static_cast<size_t>(n)]);
      sequence.ids[at] = kTaskTokens + keys[static_cast<size_t>(n)];
      sequence.ids[at + 1] = kTaskTokens + o_.keys + draw(random, o_.values);
    }
    // The first question is about needle 0, which options.depth places. If there are more questions
    // than needles to ask for, each question draws its needle. Otherwise a model could exclude the
    // needles of earlier questions.
    const bool each_once = o_.questions <= asked;
    for (int64_t q = 0; q < o_.questions; ++q) {
      const auto needle = static_cast<size_t>(each_once || q == 0 ? q : draw(random, asked));
      ask(sequence, {kTaskTokens + keys[needle]}, places[needle] + 1);
    }
    return sequence;
  }

  /// Returns the positions of the needles, which take two tokens each and do not overlap.
  std::vector<int64_t> needle_places(Random& random, int64_t needles) const {
    // Each needle takes one of length - needles slots and shifts all later slots by one.
    const int64_t slots = o_.length - needles;
    std::vector<int64_t> drawn = draw_different(random, slots, needles);
    if (o_.depth) {
      const auto wanted =
          static_cast<int64_t>(std::llround(*o_.depth * static_cast<double>(slots - 1)));
      const auto taken = std::find(drawn.begin(), drawn.end(), wanted);
      if (taken != drawn.end()) std::swap(*taken, drawn[0]);
      drawn[0] = wanted;
    }
    std::vector<int64_t> places = drawn;
    for (int64_t& place : places) {
      place += std::count_if(drawn.begin(), drawn.end(),
                             [slot = place](int64_t other) { return other < slot; });
    }
    return places;
  }

  NeedleOptions o_;
};

class RecallTask final : public SequenceTask {
 public:
  explicit RecallTask(const RecallOptions& options) : o_(options) {
    expect_option("distractors", o_.distractors, 0, 1 << 16);
    expect_option("pairs", o_.pairs, 1, 1 << 16);
    expect_option("questions", o_.questions, 1, kMostOfATask);
    expect_option("values", o_.values, 2, kMostOfATask);
    // First halves differ between groups of pairs, second halves within a group.
    expect_option("key_parts", o_.key_parts, std::max(o_.pairs, o_.distractors + 1), kMostOfATask);
  }
  int64_t vocab_size() const override { return kTaskTokens + 2 * o_.key_parts + o_.values; }
  int64_t length() const override { return 3 * o_.pairs * (1 + o_.distractors) + 4 * o_.questions; }

 private:
  struct Pair {
    int64_t first, second, value;
    int64_t place = 0;  // position of the value
  };

  TaskSequence make(Random& random) const override {
    std::vector<Pair> pairs;
    for (const int64_t first : draw_different(random, o_.key_parts, o_.pairs)) {
      for (const int64_t second : draw_different(random, o_.key_parts, 1 + o_.distractors)) {
        pairs.push_back({kTaskTokens + first, kTaskTokens + o_.key_parts + second,
                         kTaskTokens + 2 * o_.key_parts + draw(random, o_.values)});
      }
    }
    TaskSequence sequence = empty_sequence();
    for (const int64_t i : draw_different(random, std::ssize(pairs), std::ssize(pairs))) {
      Pair& pair = pairs[static_cast<size_t>(i)];
      sequence.ids.insert(sequence.ids.end(), {pair.first, pair.second, pair.value});
      pair.place = std::ssize(sequence.ids) - 1;
    }
    for (int64_t q = 0; q < o_.questions; ++q) {
      const Pair& pair = pairs[static_cast<size_t>(draw(random, std::ssize(pairs)))];
      ask(sequence, {pair.first, pair.second}, pair.place);
    }
    return sequence;
  }

  RecallOptions o_;
};

}  // namespace

TaskSequence SequenceTask::empty_sequence() const {
  TaskSequence sequence;
  sequence.ids.reserve(static_cast<size_t>(length()));
  sequence.labels.reserve(static_cast<size_t>(length()));
  return sequence;
}

TaskSequence SequenceTask::example(uint64_t seed, Split split, uint64_t index) const {
  Random random(seed, 2 * index + static_cast<uint64_t>(split));
  return make(random);
}

std::unique_ptr<SequenceTask> needle_task(const NeedleOptions& options) {
  return std::make_unique<NeedleTask>(options);
}

std::string needle_label(int64_t id, const NeedleOptions& options) {
  if (id == kTaskMark) return "?";
  const int64_t key = id - kTaskTokens;
  const int64_t value = key - options.keys, noise = value - options.values;
  if (key < 0) return std::to_string(id);
  if (value < 0) return "key" + std::to_string(key);
  return noise < 0 ? "val" + std::to_string(value) : "n" + std::to_string(noise);
}

std::unique_ptr<SequenceTask> recall_task(const RecallOptions& options) {
  return std::make_unique<RecallTask>(options);
}

}  // namespace diffattn::data
