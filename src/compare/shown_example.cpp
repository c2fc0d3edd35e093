// SPDX-License-Identifier: Apache-2.0
#include "compare/shown_example.h"

#include <fmt/core.h>

#include <algorithm>

#include "compare/haystack.h"
#include "compare/token_labels.h"

namespace diffattn::compare {
namespace {

using analysis::MarkedWord;
using torch::Tensor;
using Ids = std::vector<int64_t>;

constexpr int64_t kMostTokens = 256;      // of the maps; a longer text shows no more
constexpr int64_t kLanguageTokens = 128;  // of a text of a language model

Ids ids_of(const Tensor& ids) {
  const Tensor flat = ids.to(torch::kCPU, torch::kInt64).flatten().contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

Tensor one_row(const Ids& ids) { return torch::tensor(ids).unsqueeze(0); }

std::vector<MarkedWord> unmarked(const std::vector<std::string>& words) {
  std::vector<MarkedWord> out;
  for (const std::string& word : words) out.push_back({word, ""});
  return out;
}

/// Returns an example of the needle or the recall task with one question.
ShownExample sequence_example(const Trained& trained) {
  train::RunConfig config = trained.config;
  config.needle.length = std::min(config.needle.length, kMostTokens);
  config.needle.needles = std::min(config.needle.needles, config.needle.length / 2);
  config.needle.asked = std::min(config.needle.asked, config.needle.needles);
  config.needle.min_needles = 0;
  config.needle.questions = config.recall.questions = 1;
  config.needle.depth = 0.5;
  const data::TaskSequence sequence = train::sequence_task(config)->example(
      static_cast<uint64_t>(config.seed), data::Split::kValidation, 0);
  const data::Question& question = sequence.questions.front();
  const auto id = [&](int64_t at) { return sequence.ids[static_cast<size_t>(at)]; };
  ShownExample shown;
  shown.batch.ids = one_row(sequence.ids);
  shown.batch.labels = one_row(sequence.labels);
  shown.sequence.rows = words_of(sequence.ids, trained);
  shown.sequence.question = question.asked;
  shown.right = words_of({id(question.answer)}, trained);
  if (config.task == train::Task::kNeedle) {
    shown.sequence.name =
        fmt::format("{} needles, question about the one in the middle", config.needle.needles);
    shown.sequence.regions = haystack_regions(sequence, config.needle);
  } else {
    shown.sequence.name = "question about one pair";
    shown.sequence.regions = {{"answer", "answer", question.answer, question.answer + 1}};
  }
  shown.read.name = "One question, read out";
  shown.read.note = fmt::format("A text of {} tokens ends with a question about token {}.",
                                sequence.ids.size(), question.answer);
  shown.read.lines = {{"question", unmarked(words_of({id(question.asked)}, trained))},
                      {"right answer", unmarked(shown.right)}};
  return shown;
}

/// Returns the first text of the validation data, without labels of padding.
ShownExample language_example(const Trained& trained) {
  const train::Batch batch = trained.data->valid_batches()->next();
  Ids ids = ids_of(batch.ids.dim() == 2 ? batch.ids[0] : batch.ids);
  int64_t end = std::ssize(ids);
  if (const auto& starts = batch.mask.cu_seqlens_q()) end = (*starts)[1].item<int64_t>();
  ids.resize(static_cast<size_t>(std::min(end, kLanguageTokens)));
  ShownExample shown;
  shown.batch.ids = one_row(ids);
  shown.batch.labels = torch::full_like(shown.batch.ids, -100);
  shown.sequence.name = "start of the validation data";
  shown.sequence.rows = words_of(ids, trained);
  return shown;
}

/// Returns row 0 of a batch without its padding.
train::Batch first_row(const train::Batch& batch) {
  train::Batch row;
  const int64_t length = batch.mask.key_lengths().value()[0].item<int64_t>();
  row.ids = batch.ids.slice(0, 0, 1).slice(1, 0, length);
  row.labels = batch.labels.slice(0, 0, 1);
  row.mask.key_lengths(torch::tensor({length}));
  if (!batch.target_ids.defined()) return row;
  const int64_t written = (row.labels >= 0).sum().item<int64_t>();
  row.labels = row.labels.slice(1, 0, written);
  row.target_ids = batch.target_ids.slice(0, 0, 1).slice(1, 0, written);
  return row;
}

ShownExample classify_example(const Trained& trained) {
  ShownExample shown;
  shown.batch = first_row(trained.data->valid_batches()->next());
  const Ids ids = ids_of(shown.batch.ids);
  const int64_t label = shown.batch.labels[0].item<int64_t>();
  shown.sequence.name = "one text";
  shown.sequence.rows = words_of(ids, trained);
  shown.sequence.question = std::ssize(ids) - 1;
  shown.right = {trained.data->labels[static_cast<size_t>(label)]};
  std::vector<MarkedWord> text = unmarked(shown.sequence.rows);
  if (!trained.data->tokenizer) {
    const int64_t words = trained.config.classify.text.words_per_class;
    const int64_t first = data::kTaskTokens + label * words;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < first || ids[i] >= first + words) continue;
      text[i].mark = "answer";
      const auto at = static_cast<int64_t>(i);
      shown.sequence.regions.push_back({"word of the class", "answer", at, at + 1});
    }
  }
  shown.read = {"One text, read out", "", {{"text", text}, {"right class", unmarked(shown.right)}}};
  return shown;
}

/// Marks the sentences of a generated document: the one that the decoder must find next, those of
/// the summary before it, and the others. Returns the decoder row that must find it.
int64_t mark_sentences(const Ids& document, const data::SelectOptions& options,
                       analysis::Sequence& sequence, std::vector<MarkedWord>& words) {
  const int64_t sentence = options.words + 2;  // cue, words, stop
  int64_t selected = 0;
  for (int64_t begin = 0; begin < std::ssize(document); begin += sentence) {
    const int64_t cue = document[static_cast<size_t>(begin)] - data::kTaskTokens;
    const bool keep = cue < options.cues / 2;
    selected += keep ? 1 : 0;
    const bool last = keep && selected == options.selected;
    sequence.regions.push_back({last   ? "sentence to write next"
                                : keep ? "sentence of the summary"
                                       : "other sentences",
                                last   ? "answer"
                                : keep ? "other"
                                       : "noise",
                                begin, begin + sentence});
    for (int64_t i = begin; keep && i < begin + sentence; ++i) {
      words[static_cast<size_t>(i)].mark = "answer";
    }
  }
  // The decoder has written the sentences before: words and a stop each, after the start token.
  return (options.selected - 1) * (options.words + 1);
}

ShownExample summary_example(const Trained& trained) {
  ShownExample shown;
  shown.batch = first_row(trained.data->valid_batches()->next());
  const Ids document = ids_of(shown.batch.ids);
  shown.sequence.name = "one document and its summary";
  shown.sequence.rows = words_of(ids_of(shown.batch.target_ids), trained);
  shown.sequence.columns = words_of(document, trained);
  Ids right = ids_of(shown.batch.labels);
  right.pop_back();  // the end token
  shown.right = words_of(right, trained);
  std::vector<MarkedWord> words = unmarked(shown.sequence.columns);
  shown.read.name = "One document, read out";
  if (!trained.data->tokenizer) {
    shown.sequence.question =
        mark_sentences(document, trained.config.summarize.select, shown.sequence, words);
    shown.read.note =
        "The names are for you: the models see numbers and must learn which cues mark a sentence.";
  }
  shown.read.lines = {{"document", std::move(words)}, {"right summary", unmarked(shown.right)}};
  return shown;
}

}  // namespace

std::vector<std::string> words_of(const Ids& ids, const Trained& trained) {
  const train::RunConfig& config = trained.config;
  if (trained.data->tokenizer) return token_labels(ids, trained.data->tokenizer);
  std::vector<std::string> words;
  for (const int64_t id : ids) {
    words.push_back(config.task == train::Task::kNeedle ? data::needle_label(id, config.needle)
                    : config.task == train::Task::kSummarize
                        ? data::select_label(id, config.summarize.select)
                        : std::to_string(id));
  }
  return words;
}

ShownExample shown_example(const Trained& trained) {
  switch (trained.config.task) {
    case train::Task::kNeedle:
    case train::Task::kRecall: return sequence_example(trained);
    case train::Task::kClassify: return classify_example(trained);
    case train::Task::kSummarize: return summary_example(trained);
    case train::Task::kLanguageModel: break;
  }
  return language_example(trained);
}

}  // namespace diffattn::compare
