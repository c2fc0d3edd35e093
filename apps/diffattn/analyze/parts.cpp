// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/analyze/parts.h"

#include <fmt/core.h>

#include <algorithm>

#include "diffattn/io/error.h"
#include "apps/diffattn/terminal/progress.h"

namespace diffattn::app {
namespace {

using analysis::HeadIndex;
using analysis::ModelAttention;

/// What a task knows about the heads: where the rows that ask look.
struct AskedMass {
  std::vector<double> answer, noise;  // sums, one per layer and head
  int64_t rows = 0;
  bool knows_noise = false;

  void add(const ModelPart& part, const KnownText& known) {
    knows_noise = knows_noise || !known.noise.empty();
    for (const AskedRow& asked : known.asked) {
      std::size_t at = 0;
      for (const nn::HeadTensors& call : part.calls) {
        const auto on_answer = analysis::mass_on(call, asked.row, {asked.answer});
        const auto on_noise = analysis::mass_on(call, asked.row, known.noise);
        answer.resize(std::max(answer.size(), at + on_answer.size()));
        noise.resize(answer.size());
        for (std::size_t h = 0; h < on_answer.size(); ++h, ++at) {
          answer[at] += on_answer[h];
          noise[at] += on_noise[h];
        }
      }
      ++rows;
    }
  }

  void append_to(analysis::StatisticsTable& table) const {
    if (rows == 0) return;
    table.names.push_back({"answer_mass", "answer mass",
                           "What the rows that ask give to the answer: the sum of A there."});
    if (knows_noise) {
      table.names.push_back({"noise_mass", "noise mass",
                             "What the rows that ask give to the noise: the sum of A there."});
    }
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      table.rows[i].values.push_back(answer[i] / static_cast<double>(rows));
      if (knows_noise) table.rows[i].values.push_back(noise[i] / static_cast<double>(rows));
    }
  }
};

/// The labels of keys: those of their tokens, each as often as the part looks at it.
std::vector<std::string> key_labels(const ModelPart& part, const KnownText& known) {
  const std::vector<std::string>& labels =
      part.written_columns ? known.written_labels : known.labels;
  if (part.keys_per_token == 1)
    return part.written_columns == part.written_rows ? std::vector<std::string>{} : labels;
  std::vector<std::string> out;
  for (const std::string& label : labels) {
    for (int64_t path = 0; path < part.keys_per_token; ++path) {
      out.push_back(fmt::format("{} \u00b7{}", label, path));
    }
  }
  return out;
}

analysis::Sequence sequence_of_part(const ModelPart& part, const KnownText& known) {
  analysis::Sequence sequence;
  sequence.name = part.name.empty() ? known.name : fmt::format("{}: {}", known.name, part.name);
  sequence.rows = part.written_rows ? known.written_labels : known.labels;
  sequence.columns = key_labels(part, known);
  if (part.written_columns) return sequence;
  for (analysis::Region region : known.regions) {
    region.begin *= part.keys_per_token;
    region.end *= part.keys_per_token;
    sequence.regions.push_back(region);
  }
  return sequence;
}

/// Every part of a model: maps of the shown text, statistics of all that are counted.
std::vector<ModelAttention> attentions_of(AnalyzedModel& model, const AnalyzedTexts& texts,
                                          double threshold) {
  std::vector<ModelPart> shown = model.read(texts.shown().text);
  std::vector<analysis::AttentionStatistics> statistics(shown.size(),
                                                        analysis::AttentionStatistics(threshold));
  std::vector<AskedMass> masses(shown.size());
  Progress progress("reading " + model.name, texts.count());
  texts.each([&](const KnownText& known) {
    const std::vector<ModelPart> parts = model.read(known.text);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      statistics[i].add(parts[i].calls);
      if (parts[i].keys_per_token == 1 && !parts[i].written_rows) masses[i].add(parts[i], known);
    }
    progress.step("");
  });
  progress.clear();
  std::vector<ModelAttention> out;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    ModelAttention one;
    one.name = shown[i].name.empty() ? model.name : model.name + ", " + shown[i].name;
    one.description = model.description;
    one.sequence = sequence_of_part(shown[i], texts.shown());
    one.calls = std::move(shown[i].calls);
    one.statistics = statistics[i].table();
    one.lambda = statistics[i].lambda();
    for (analysis::LambdaLayer& layer : one.lambda) {
      layer.init = shown[i].lambda_init[static_cast<std::size_t>(layer.layer)];
    }
    masses[i].append_to(one.statistics);
    analysis::describe(one);
    out.push_back(std::move(one));
  }
  return out;
}

HeadIndex chosen_head(const AnalyzeRequest& request, const ModelAttention& model) {
  const auto check = [&](const char* name, const std::optional<int64_t>& value, int64_t count) {
    if (!value || (*value >= 0 && *value < count)) return;
    throw io::Error(name, fmt::format("expected an integer in [0, {}], as {} has {}, got {}",
                                      count - 1, model.name, count, *value));
  };
  check("--layer", request.layer, model.layers());
  check("--head", request.head, model.heads());
  if (request.layer && request.head) return {*request.layer, *request.head};
  analysis::StatisticsTable within = model.statistics;
  std::erase_if(within.rows, [&](const analysis::StatisticsTable::Row& row) {
    return (request.layer && row.layer != *request.layer) ||
           (request.head && row.head != *request.head);
  });
  const std::vector<std::string> keys = {"answer_mass", "negative_mass", "row_max"};
  const HeadIndex strongest = analysis::strongest_head(within, keys);
  return {request.layer.value_or(strongest.layer), request.head.value_or(strongest.head)};
}

/// The part of a model that pictures show.
std::size_t pictured_part(const std::string& wanted, const std::string& model,
                          const std::vector<ModelAttention>& parts) {
  if (wanted.empty()) return 0;
  std::string known;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part = parts[i].name == model ? "" : parts[i].name.substr(model.size() + 2);
    if (part == wanted) return i;
    known += (known.empty() ? "" : ", ") + part;
  }
  throw io::Error("--part",
                  fmt::format("expected a part of {} ({}), got {}", model,
                              known.empty() ? "it has one only" : known, io::in_quotes(wanted)));
}

/// The folders as models with names that differ.
std::vector<AnalyzedModel> load_models(const AnalyzeRequest& request) {
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
      throw io::Error(folder, fmt::format("expected a model with the {} of {} to compare it with",
                                          same_tokens ? "kind" : "tokenizer", first.folder));
    }
  }
  return loaded;
}

}  // namespace

Analysis analyze(const AnalyzeRequest& request) {
  std::vector<AnalyzedModel> loaded = load_models(request);
  const AnalyzedTexts texts(request.text, loaded.front());
  Analysis result;
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
  if (tokens == 1) result.subtitle += ". A single token sees only itself: every map is one number";
  return result;
}

}  // namespace diffattn::app
