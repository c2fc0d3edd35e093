// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "data/tasks/draw.h"
#include "diffattn/data/tasks.h"

namespace diffattn::data {
namespace {

class NoisyTextTask final : public ExampleTask {
 public:
  explicit NoisyTextTask(const NoisyTextOptions& options) : o_(options) {
    expect_option("classes", o_.classes, 2, 1 << 16);
    expect_option("signal", o_.signal, 1, kMostOfATask);
    expect_option("misleading", o_.misleading, 0, o_.signal - 1);
    expect_option("length", o_.length, o_.signal + o_.misleading, kMostOfATask);
    expect_option("words_per_class", o_.words_per_class, 1, 1 << 16);
    expect_option("noise", o_.noise, 1, kMostOfATask);
  }
  int64_t vocab_size() const override {
    return kTaskTokens + o_.classes * o_.words_per_class + o_.noise;
  }
  int64_t classes() const override { return o_.classes; }

 private:
  TokenId word_of(int64_t label, Random& random) const {
    return static_cast<TokenId>(kTaskTokens + label * o_.words_per_class +
                                draw(random, o_.words_per_class));
  }

  Example make(Random& random) const override {
    Example example;
    example.label = draw(random, o_.classes);
    const int64_t first_noise = kTaskTokens + o_.classes * o_.words_per_class;
    for (int64_t i = 0; i < o_.length; ++i) {
      example.source.push_back(static_cast<TokenId>(first_noise + draw(random, o_.noise)));
    }
    const auto places = draw_different(random, o_.length, o_.signal + o_.misleading);
    for (int64_t i = 0; i < std::ssize(places); ++i) {
      // Any class except the right one.
      const int64_t other = (example.label + 1 + draw(random, o_.classes - 1)) % o_.classes;
      example.source[static_cast<size_t>(places[static_cast<size_t>(i)])] =
          word_of(i < o_.signal ? example.label : other, random);
    }
    return example;
  }

  NoisyTextOptions o_;
};

class SelectTask final : public ExampleTask {
 public:
  explicit SelectTask(const SelectOptions& options) : o_(options) {
    expect_option("sentences", o_.sentences, 1, 1 << 16);
    expect_option("selected", o_.selected, 1, o_.sentences);
    expect_option("words", o_.words, 1, 1 << 16);
    expect_option("cues", o_.cues, 2, 1 << 16);
    expect_option("vocabulary", o_.vocabulary, 1, kMostOfATask);
  }
  int64_t vocab_size() const override { return kTaskTokens + o_.cues + o_.vocabulary; }
  int64_t classes() const override { return 0; }

 private:
  Example make(Random& random) const override {
    Example example;
    const auto chosen = draw_different(random, o_.sentences, o_.selected);
    const int64_t salient_cues = o_.cues / 2;
    for (int64_t s = 0; s < o_.sentences; ++s) {
      const bool salient = std::find(chosen.begin(), chosen.end(), s) != chosen.end();
      const int64_t cue = salient ? draw(random, salient_cues)
                                  : salient_cues + draw(random, o_.cues - salient_cues);
      example.source.push_back(static_cast<TokenId>(kTaskTokens + cue));
      for (int64_t w = 0; w < o_.words; ++w) {
        const auto word = static_cast<TokenId>(kTaskTokens + o_.cues + draw(random, o_.vocabulary));
        example.source.push_back(word);
        if (salient) example.target.push_back(word);
      }
      example.source.push_back(kTaskStop);
      if (salient) example.target.push_back(kTaskStop);
    }
    example.target.push_back(kTaskEnd);
    return example;
  }

  SelectOptions o_;
};

}  // namespace

Example ExampleTask::example(uint64_t seed, Split split, uint64_t index) const {
  Random random(seed, 2 * index + static_cast<uint64_t>(split));
  return make(random);
}

ExampleSet ExampleTask::examples(uint64_t seed, Split split, uint64_t first, uint64_t count) const {
  ExampleSet set;
  for (int64_t label = 0; label < classes(); ++label) {
    set.label_names.push_back(std::to_string(label));
  }
  for (uint64_t i = 0; i < count; ++i) {
    set.examples.push_back(example(seed, split, first + i));
  }
  return set;
}

std::unique_ptr<ExampleTask> noisy_text_task(const NoisyTextOptions& options) {
  return std::make_unique<NoisyTextTask>(options);
}

std::unique_ptr<ExampleTask> select_task(const SelectOptions& options) {
  return std::make_unique<SelectTask>(options);
}

std::string select_label(int64_t id, const SelectOptions& options) {
  if (id == kTaskStop) return ".";
  if (id == kTaskMark) return "<s>";
  if (id == kTaskEnd) return "</s>";
  if (id < kTaskTokens) return "<pad>";
  const int64_t cue = id - kTaskTokens, salient = options.cues / 2;
  if (cue < salient) return "KEEP" + std::to_string(cue + 1);
  if (cue < options.cues) return "skip" + std::to_string(cue - salient + 1);
  return "w" + std::to_string(cue - options.cues + 1);
}

}  // namespace diffattn::data
