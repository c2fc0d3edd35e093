// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/analyze/analyzed_texts.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "apps/diffattn/options/input_stream.h"
#include "apps/diffattn/options/run_file.h"
#include "apps/diffattn/terminal/print.h"
#include "compare/haystack.h"
#include "compare/token_labels.h"
#include "diffattn/data/tasks.h"
#include "diffattn/io/error.h"

namespace diffattn::app {
namespace {

constexpr uint64_t kMostTextBytes = uint64_t{64} << 20;
constexpr int64_t kMostWritten = 64;   // tokens that an encoder-decoder writes itself
constexpr int64_t kShownTokens = 256;  // of a data set, if no text is given

std::vector<int64_t> ids_of(const std::vector<io::TokenId>& tokens) {
  return {tokens.begin(), tokens.end()};
}

std::string whole_input(const std::string& path) {
  std::string text = input_text(path, kMostTextBytes);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

AnalyzedTexts::AnalyzedTexts(const TextOptions& options, AnalyzedModel& model, int64_t max_tokens)
    : options_(options), model_(model), max_tokens_(max_tokens), config_(task_config()) {
  if (!options.summary.empty() && !model.writes()) {
    throw io::Error("--summary",
                    fmt::format("expected an encoder-decoder as --model, got {}, which "
                                "has no decoder to read it",
                                model.folder));
  }
  if (!options.data.empty()) read_data();
  if (!options.prompt_ids.empty()) {
    shown_.text.ids = options.prompt_ids;
    shown_.name = "ids";
    shown_.text.given_as = "--prompt-ids";
    truncate(shown_.text.ids, shown_.text.given_as);
    complete(shown_);
  } else if (!options.task.empty()) {
    shown_ = task_example(0);
  } else if (!options.input.empty()) {
    shown_ = text_of(whole_input(options.input), options.input);
  } else if (!options.text.empty() || options.data.empty()) {
    shown_ = text_of(options.text, "text");
  } else {
    shown_ = beginning_of_data();
  }
}

/// Returns the first tokens of the data set.
KnownText AnalyzedTexts::beginning_of_data() const {
  KnownText first;
  each_of_data([&](const KnownText& known) {
    first = known;
    return false;
  });
  first.name = options_.data;
  first.text.ids.resize(std::min<size_t>(first.text.ids.size(), kShownTokens));
  complete(first);
  return first;
}

KnownText AnalyzedTexts::text_of(const std::string& text, const std::string& name) const {
  if (!model_.tokenizer) {
    throw io::Error(model_.folder, "has no tokenizer.json; give --prompt-ids instead of text");
  }
  KnownText known;
  known.text.ids = ids_of(model_.tokenizer->encode(text));
  truncate(known.text.ids, name);
  if (model_.writes() && !options_.summary.empty()) {
    known.text.written = ids_of(model_.tokenizer->encode(options_.summary));
    known.text.written.insert(known.text.written.begin(), model_.first_written());
    truncate(known.text.written, "--summary");
  }
  known.name = known.text.given_as = name;
  complete(known);
  return known;
}

/// With --truncate, cuts ids after the most tokens that every model reads, with a note.
void AnalyzedTexts::truncate(std::vector<int64_t>& ids, const std::string& given_as) const {
  if (!options_.truncate || std::ssize(ids) <= max_tokens_) return;
  print_note("diffattn: {}: reading the first {} of {} tokens\n", given_as, max_tokens_,
             ids.size());
  ids.resize(static_cast<size_t>(max_tokens_));
}

/// Adds labels and, for an encoder-decoder without a given summary, the text that it writes.
void AnalyzedTexts::complete(KnownText& known) const {
  if (model_.writes() && known.text.written.empty()) {
    known.text.written = model_.write(known.text, kMostWritten);
  }
  if (known.labels.empty()) known.labels = compare::token_labels(known.text.ids, model_.tokenizer);
  if (known.written_labels.empty()) {
    known.written_labels = compare::token_labels(known.text.written, model_.tokenizer);
  }
}

/// Returns the run file of the run that made the model, or an empty string. A model lies in
/// runs/a/model or runs/a/checkpoints/step-N.
std::string AnalyzedTexts::run_file() const {
  namespace fs = std::filesystem;
  const fs::path folder = fs::weakly_canonical(model_.folder);
  for (const fs::path& run : {folder.parent_path(), folder.parent_path().parent_path()}) {
    std::error_code ignored;
    if (fs::is_regular_file(run / "config.toml", ignored)) return (run / "config.toml").string();
  }
  return "";
}

train::RunConfig AnalyzedTexts::task_config() const {
  if (options_.task.empty()) return {};
  train::RunConfig config = load_run_config(run_file(), {});
  config.set("task", options_.task);
  config.data.train.clear();  // the task generates its examples, even if the run read data
  set_overrides(config, options_.settings);
  return config;
}

KnownText AnalyzedTexts::task_example(int64_t index) const {
  KnownText known = options_.task == "needle" || options_.task == "recall" ? sequence_example(index)
                                                                           : source_example(index);
  known.name = known.text.given_as = fmt::format("{} {}", options_.task, index);
  complete(known);
  return known;
}

KnownText AnalyzedTexts::sequence_example(int64_t index) const {
  const auto task = options_.task == "needle" ? data::needle_task(config_.needle)
                                              : data::recall_task(config_.recall);
  const data::TaskSequence sequence = task->example(
      static_cast<uint64_t>(options_.seed), data::Split::kValidation, static_cast<uint64_t>(index));
  KnownText known;
  known.text.ids = sequence.ids;
  for (const data::Question& question : sequence.questions) {
    known.asked.push_back({question.asked, {question.answer, question.answer + 1}});
  }
  if (options_.task == "needle") {
    for (const int64_t id : sequence.ids) {
      known.labels.push_back(data::needle_label(id, config_.needle));
    }
    known.regions = compare::haystack_regions(sequence, config_.needle);
    for (const analysis::Region& region : known.regions) {
      if (region.kind == "noise") known.noise.push_back({region.begin, region.end});
    }
    return known;
  }
  for (const data::Question& question : sequence.questions) {
    known.regions.push_back({"answer", "answer", question.answer, question.answer + 1});
  }
  return known;
}

KnownText AnalyzedTexts::source_example(int64_t index) const {
  const auto task = options_.task == "classify" ? data::noisy_text_task(config_.classify.text)
                                                : data::select_task(config_.summarize.select);
  const data::Example example = task->example(
      static_cast<uint64_t>(options_.seed), data::Split::kValidation, static_cast<uint64_t>(index));
  KnownText known;
  known.text.ids = ids_of(example.source);
  if (model_.writes() && !example.target.empty()) {
    known.text.written = {model_.first_written()};
    known.text.written.insert(known.text.written.end(), example.target.begin(),
                              example.target.end() - 1);
  }
  if (options_.task == "summarize") {
    const auto label = [&](int64_t id) { return data::select_label(id, config_.summarize.select); };
    for (const int64_t id : known.text.ids) known.labels.push_back(label(id));
    for (const int64_t id : known.text.written) known.written_labels.push_back(label(id));
  }
  return known;
}

/// Returns the largest number of tokens of --data that the model reads at a time.
int64_t AnalyzedTexts::piece_length() const {
  return options_.seq_len > 0 ? options_.seq_len : model_.config.max_position_embeddings;
}

void AnalyzedTexts::read_data() {
  const int64_t most = model_.config.max_position_embeddings;
  if (options_.seq_len > most) {
    throw io::Error("--seq-len", fmt::format("expected at most {}, the most that {} reads, got {}",
                                             most, model_.folder, options_.seq_len));
  }
  if (!model_.tokenizer) {
    throw io::Error(model_.folder, "has no tokenizer.json, which --data needs");
  }
  if (model_.writes()) {
    data::ExampleOptions limits;
    limits.max_source_tokens = limits.max_target_tokens = static_cast<size_t>(piece_length());
    pairs_ =
        data::read_examples(options_.data, io::RecordKind::kSummary, *model_.tokenizer, limits);
  } else {
    corpus_ = data::read_corpus(options_.data, *model_.tokenizer);
  }
}

/// Calls `use` with every text of --data until it returns false.
void AnalyzedTexts::each_of_data(const std::function<bool(const KnownText&)>& use) const {
  for (const data::Example& example : pairs_.examples) {
    KnownText known;
    known.text.given_as = options_.data;
    known.text.ids = ids_of(example.source);
    known.text.written = ids_of(example.target);
    known.text.written.insert(known.text.written.begin(), model_.first_written());
    known.text.written.pop_back();
    if (!use(known)) return;
  }
  if (!corpus_) return;
  std::vector<io::TokenId> tokens;
  for (const data::Document& document : corpus_->documents()) {
    for (uint64_t begin = document.begin; begin < document.end; begin += tokens.size()) {
      tokens.resize(
          std::min<uint64_t>(static_cast<uint64_t>(piece_length()), document.end - begin));
      corpus_->read(begin, tokens);
      KnownText known;
      known.text.given_as = options_.data;
      known.text.ids = ids_of(tokens);
      if (!use(known)) return;
    }
  }
}

int64_t AnalyzedTexts::count() const {
  if (options_.data.empty()) return options_.task.empty() ? 1 : options_.examples;
  int64_t count = std::ssize(pairs_.examples);
  if (!corpus_) return count;
  for (const data::Document& document : corpus_->documents()) {
    const auto tokens = static_cast<int64_t>(document.end - document.begin);
    count += (tokens + piece_length() - 1) / piece_length();
  }
  return count;
}

void AnalyzedTexts::each(const std::function<void(const KnownText&)>& use) const {
  if (!options_.data.empty()) {
    each_of_data([&](const KnownText& known) {
      use(known);
      return true;
    });
    return;
  }
  use(shown_);
  for (int64_t i = 1; i < count(); ++i) use(task_example(i));
}

std::string AnalyzedTexts::counted() const {
  if (!options_.data.empty()) return "all of " + options_.data;
  if (options_.task.empty() || options_.examples == 1) return "this text";
  return fmt::format("{} examples of the task", options_.examples);
}

}  // namespace diffattn::app
