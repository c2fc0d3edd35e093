// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/analyze/run_analysis.h"

#include <fmt/core.h>

#include <algorithm>

#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/terminal/stop_signal.h"
#include "diffattn/io/error.h"

namespace diffattn::app {
namespace {

using analysis::HeadIndex;
using analysis::ModelAttention;

/// Attention that the rows with a question give to the answer and to the noise.
struct AskedMass {
  std::vector<double> answer, noise;  // sums over rows, one per layer and head
  int64_t rows = 0;
  bool knows_noise = false;

  void add(const ModelPart& part, const KnownText& known) {
    knows_noise = knows_noise || !known.noise.empty();
    for (const AskedRow& asked : known.asked) {
      size_t at = 0;
      for (const nn::HeadTensors& call : part.calls) {
        const auto on_answer = analysis::mass_on(call, asked.row, {asked.answer});
        const auto on_noise = analysis::mass_on(call, asked.row, known.noise);
        answer.resize(std::max(answer.size(), at + on_answer.size()));
        noise.resize(answer.size());
        for (size_t h = 0; h < on_answer.size(); ++h, ++at) {
          answer[at] += on_answer[h];
          noise[at] += on_noise[h];
        }
      }
      ++rows;
    }
  }

  void append_to(analysis::StatisticsTable& table) const {
    if (rows == 0) return;
    table.names.push_back(
        {"answer_mass", "answer mass", "Sum of A on the answer, in the rows that ask a question."});
    if (knows_noise) {
      table.names.push_back(
          {"noise_mass", "noise mass", "Sum of A on the noise, in the rows that ask a question."});
    }
    for (size_t i = 0; i < table.rows.size(); ++i) {
      table.rows[i].values.push_back(answer[i] / static_cast<double>(rows));
      if (knows_noise) table.rows[i].values.push_back(noise[i] / static_cast<double>(rows));
    }
  }
};

/// Returns the tokens and regions of a part.
analysis::Sequence sequence_of_part(const ModelPart& part, const KnownText& known) {
  analysis::Sequence sequence;
  sequence.name = part.name.empty() ? known.name : fmt::format("{}: {}", known.name, part.name);
  sequence.rows = part.written_rows ? known.written_labels : known.labels;
  if (part.written_columns != part.written_rows) {
    sequence.columns = part.written_columns ? known.written_labels : known.labels;
  }
  if (!part.written_columns) sequence.regions = known.regions;
  if (!part.written_rows && !known.asked.empty()) sequence.question = known.asked.front().row;
  return analysis::path_sequence(std::move(sequence), part.path);
}

/// Statistics of one part over all texts.
struct PartStatistics {
  analysis::AttentionStatistics statistics;
  AskedMass mass;

  void add(const ModelPart& part, const KnownText& known) {
    statistics.add(part.calls);
    if (part.path == 0 && !part.written_rows) mass.add(part, known);
  }
};

/// Returns a part with its maps of the shown text and its statistics of all texts.
ModelAttention attention_of_part(ModelPart part, const AnalyzedModel& model, const KnownText& shown,
                                 const PartStatistics& all) {
  ModelAttention one;
  one.name = part.name.empty() ? model.name : model.name + ", " + part.name;
  one.description = model.description;
  one.sequence = sequence_of_part(part, shown);
  one.calls = std::move(part.calls);
  one.statistics = all.statistics.table();
  one.lambda = all.statistics.lambda();
  for (analysis::LambdaLayer& layer : one.lambda) {
    layer.init = part.lambda_init[static_cast<size_t>(layer.layer)];
  }
  all.mass.append_to(one.statistics);
  analysis::describe(one);
  return one;
}

/// Runs a model on every text once and returns its parts.
std::vector<ModelAttention> attentions_of(AnalyzedModel& model, const AnalyzedTexts& texts,
                                          double threshold) {
  std::vector<ModelPart> shown = model.read(texts.shown().text);
  std::vector<PartStatistics> statistics(
      shown.size(), {.statistics = analysis::AttentionStatistics(threshold), .mass = {}});
  ProgressBar bar("reading " + terminal_text(model.name), texts.count());
  texts.each([&](const KnownText& known) {
    check_interrupt();
    const bool is_shown = known.text == texts.shown().text;
    const std::vector<ModelPart> read =
        is_shown ? std::vector<ModelPart>{} : model.read(known.text);
    const std::vector<ModelPart>& parts = is_shown ? shown : read;
    for (size_t i = 0; i < parts.size(); ++i) statistics[i].add(parts[i], known);
    bar.step("");
  });
  bar.clear();
  std::vector<ModelAttention> out;
  for (size_t i = 0; i < shown.size(); ++i) {
    out.push_back(attention_of_part(std::move(shown[i]), model, texts.shown(), statistics[i]));
  }
  return out;
}

/// Returns the head that page and pictures show: the requested one, or the strongest.
HeadIndex chosen_head(const AnalysisRequest& request, const ModelAttention& model) {
  const auto check = [&](const char* name, const std::optional<int64_t>& value, int64_t count) {
    if (!value || (*value >= 0 && *value < count)) return;
    throw io::Error(name, fmt::format("expected an integer in [0, {}], because {} has {}, got {}",
                                      count - 1, model.name, count, *value));
  };
  check("--layer", request.layer, model.layers());
  check("--head", request.head, model.heads());
  if (request.layer && request.head) return {*request.layer, *request.head};
  if (const auto head = analysis::head_on_answer(model, request.layer, request.head)) return *head;
  analysis::StatisticsTable within = model.statistics;
  std::erase_if(within.rows, [&](const analysis::StatisticsTable::Row& row) {
    return (request.layer && row.layer != *request.layer) ||
           (request.head && row.head != *request.head);
  });
  const std::vector<std::string> keys = {"negative_mass", "row_max"};
  const HeadIndex strongest = analysis::strongest_head(within, keys);
  return {request.layer.value_or(strongest.layer), request.head.value_or(strongest.head)};
}

/// Returns the index of the part that pictures show.
size_t pictured_part(const std::string& wanted, const std::string& model,
                     const std::vector<ModelAttention>& parts) {
  if (wanted.empty()) return 0;
  std::string known;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part = parts[i].name == model ? "" : parts[i].name.substr(model.size() + 2);
    if (part == wanted) return i;
    known += (known.empty() ? "" : ", ") + part;
  }
  throw io::Error("--part",
                  fmt::format("expected a part of {} ({}), got {}", model,
                              known.empty() ? "it has only one" : known, io::in_quotes(wanted)));
}

/// Loads the models and gives them different names.
std::vector<AnalyzedModel> load_models(const AnalysisRequest& request) {
  std::vector<AnalyzedModel> loaded;
  loaded.reserve(request.folders.size());
  for (const std::string& folder : request.folders) {
    loaded.emplace_back(folder, request.device, request.dtype);
    AnalyzedModel& last = loaded.back();
    const AnalyzedModel& first = loaded.front();
    const auto same_name = [&](const AnalyzedModel& one) { return one.name == last.name; };
    if (std::any_of(loaded.begin(), loaded.end() - 1, same_name)) last.name = folder;
    const bool same_tokens =
        !first.tokenizer || !last.tokenizer || first.tokenizer->hash() == last.tokenizer->hash();
    if (!same_tokens || last.writes() != first.writes()) {
      throw io::Error(folder, fmt::format("expected a model with the same {} as {} for --compare",
                                          same_tokens ? "kind" : "tokenizer", first.folder));
    }
  }
  return loaded;
}

}  // namespace

AnalysisResult run_analysis(const AnalysisRequest& request) {
  std::vector<AnalyzedModel> loaded = load_models(request);
  int64_t max_tokens = loaded.front().config.max_position_embeddings;
  for (const AnalyzedModel& model : loaded) {
    max_tokens = std::min(max_tokens, model.config.max_position_embeddings);
  }
  const AnalyzedTexts texts(request.text, loaded.front(), max_tokens);
  AnalysisResult result;
  for (AnalyzedModel& model : loaded) {
    std::vector<ModelAttention> parts = attentions_of(model, texts, request.threshold);
    result.pictured.push_back(result.models.size() +
                              pictured_part(request.part, model.name, parts));
    for (ModelAttention& part : parts) {
      result.heads.push_back(chosen_head(request, part));
      result.models.push_back(std::move(part));
    }
    result.title += (result.title.empty() ? "" : ", ") + model.name;
  }
  const int64_t tokens = std::ssize(texts.shown().text.ids);
  result.subtitle = fmt::format("{} {}, statistics of {}", tokens, tokens == 1 ? "token" : "tokens",
                                texts.counted());
  if (tokens == 1) result.subtitle += ". A single token sees only itself: each map is one number";
  return result;
}

}  // namespace diffattn::app
