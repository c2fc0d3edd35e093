// SPDX-License-Identifier: Apache-2.0
#include "compare/results.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "compare/environment.h"
#include "compare/numbers.h"
#include "compare/report.h"
#include "diffattn/io/file.h"

namespace diffattn::compare {
namespace {

using Json = nlohmann::ordered_json;

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json summary_of(const ModelResult& model, const std::string& name) {
  const MeanSpread all = number_of(model, name);
  Json values = Json::array();
  for (const RunResult& run : model.runs) values.push_back(finite_or_null(number_of(run, name)));
  return {{"mean", finite_or_null(all.mean)},
          {"spread", finite_or_null(all.spread)},
          {"values", values}};
}

Json cells_of(const RunResult& run) {
  Json cells = Json::array();
  for (const NeedleCell& cell : run.needles) {
    cells.push_back({{"needles", cell.needles},
                     {"asked", cell.asked},
                     {"depth", cell.depth},
                     {"right", cell.right},
                     {"questions", cell.questions},
                     {"right_at_depth", cell.first_right},
                     {"questions_at_depth", cell.first_questions},
                     {"answer", finite_or_null(cell.answer)},
                     {"strongest_answer", finite_or_null(cell.strongest_answer)},
                     {"noise", finite_or_null(cell.noise)}});
  }
  return cells;
}

Json outliers_json(const Outliers& o) {
  return {{"top1", finite_or_null(o.top1)},
          {"top10", finite_or_null(o.top10)},
          {"top100", finite_or_null(o.top100)},
          {"median", finite_or_null(o.median)}};
}

Json run_json(const RunResult& run) {
  Json curve = Json::array();
  for (const CurvePoint& point : run.curve) {
    curve.push_back({{"step", point.step},
                     {"loss", finite_or_null(point.loss)},
                     {"valid_loss", finite_or_null(point.valid_loss)},
                     {"valid_accuracy", finite_or_null(point.valid_accuracy)}});
  }
  return {{"seed", run.seed},
          {"finite", run.finite},
          {"train_seconds", run.train_seconds},
          {"machine", run.machine},
          {"curve", curve},
          {"needles", cells_of(run)},
          {"attention_logits", outliers_json(run.attention_logits)},
          {"hidden_states", outliers_json(run.hidden_states)}};
}

/// Returns a field of a CSV file in quotes.
std::string quoted(const std::string& text) {
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
  return field + "\"";
}

/// Returns the name of a number as a CSV field. It may hold the name of a file.
std::string name_field(const std::string& name) {
  return name.find_first_of(",\"\r\n") == std::string::npos ? name : quoted(name);
}

std::string mean_text(const MeanSpread& value, bool with_spread) {
  if (std::isnan(value.mean)) return "–";
  const int digits = std::abs(value.mean) < 10 ? 3 : 1;
  return with_spread ? fmt::format("{:.{}f} ± {:.{}f}", value.mean, digits, value.spread, digits)
                     : fmt::format("{:.{}f}", value.mean, digits);
}

/// Returns the width on a terminal: the number of bytes that begin a character.
size_t shown_width(const std::string& text) {
  size_t width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string right_aligned(const std::string& text, size_t width) {
  const size_t shown = shown_width(text);
  return std::string(shown < width ? width - shown : 0, ' ') + text;
}

/// Returns what a model gets right in its task.
const char* answers_of(train::Task task) {
  switch (task) {
    case train::Task::kClassify: return "of the texts";
    case train::Task::kSummarize: return "of the summary's tokens";
    case train::Task::kLanguageModel:
    case train::Task::kNeedle:
    case train::Task::kRecall: break;
  }
  return "of the answers";
}

/// The number by which the verdict tells models apart.
struct Yardstick {
  std::string name;
  double sign = 1;  // -1: lower is better
};

Yardstick yardstick_of(train::Task task) {
  if (task == train::Task::kLanguageModel) return {"valid_loss", -1};
  return {"accuracy", 1};
}

/// Says how two models differ, from their numbers with the same seeds.
std::string difference_in_words(const ModelResult& model, const ModelResult& base,
                                const Yardstick& yardstick) {
  if (model.runs.size() < 2) return "one seed says nothing about the spread";
  const auto values_of = [&](const ModelResult& m) {
    std::vector<double> values;
    for (const RunResult& run : m.runs) {
      values.push_back(yardstick.sign * number_of(run, yardstick.name));
    }
    return values;
  };
  const std::vector<double> mine = values_of(model), others = values_of(base);
  const MeanSpread a = mean_and_spread(mine), b = mean_and_spread(others);
  const double change = a.mean - b.mean;
  if (std::abs(change) <= std::max(a.spread, b.spread)) {
    return "the difference is within the spread of the seeds";
  }
  const auto& [better, worse] = change > 0 ? std::tie(mine, others) : std::tie(others, mine);
  const std::string& best = change > 0 ? model.name : base.name;
  const double least = *std::ranges::min_element(better);
  const double most = *std::ranges::max_element(worse);
  std::string text = fmt::format("{} is better by more than the spread of the seeds", best);
  if (least > most) {
    text +=
        fmt::format("; its worst seed has {:.3f}, the best of {} {:.3f}", yardstick.sign * least,
                    change > 0 ? base.name : model.name, yardstick.sign * most);
  }
  return text;
}

std::string verdict_on(const Comparison& comparison, size_t index) {
  const ModelResult& model = comparison.models[index];
  const ModelResult& base = comparison.models[comparison.baseline];
  const bool several = comparison.seeds.size() > 1;
  const Yardstick yardstick = yardstick_of(comparison.task);
  const std::string mine = mean_text(number_of(model, yardstick.name), several);
  const std::string others = mean_text(number_of(base, yardstick.name), several);
  const std::string seeds =
      several ? fmt::format("mean ± standard deviation of {} seeds", comparison.seeds.size())
              : std::string("1 seed");
  const std::string difference = difference_in_words(model, base, yardstick);
  if (comparison.task == train::Task::kLanguageModel) {
    return fmt::format("After {} steps {} has a validation loss of {} and {} {} ({}): {}.",
                       model.config.train.steps, model.name, mine, base.name, others, seeds,
                       difference);
  }
  return fmt::format("After {} steps {} gets {} {} right and {} {} ({}): {}.",
                     model.config.train.steps, model.name, mine, answers_of(comparison.task),
                     base.name, others, seeds, difference);
}

Json environment_json(const Environment& environment) {
  return {{"cpu", environment.cpu},
          {"gpu", environment.gpu.empty() ? Json() : Json(environment.gpu)},
          {"threads", environment.threads},
          {"diffattn", environment.diffattn},
          {"torch", environment.torch}};
}

/// Returns the tokens that a run trains on. Rows of generated tasks may have other lengths.
double trained_tokens(const train::RunConfig& config) {
  const train::RunConfig::Train& t = config.train;
  return static_cast<double>(t.steps * t.batch_size * t.accumulate * t.seq_len);
}

}  // namespace

std::string to_json(const Comparison& comparison) {
  const auto names = number_names(comparison);
  Json models = Json::object();
  const ModelResult& base = comparison.models[comparison.baseline];
  for (const ModelResult& model : comparison.models) {
    Json metrics = Json::object();
    for (const std::string& name : names) metrics[name] = summary_of(model, name);
    Json runs = Json::array();
    for (const RunResult& run : model.runs) runs.push_back(run_json(run));
    Json tried = Json::array();
    for (const auto& [rate, loss] : model.tried_rates) {
      tried.push_back({{"learning_rate", rate}, {"valid_loss", finite_or_null(loss)}});
    }
    models[model.name] = {{"parameters", model.parameters},
                          {"parameters_of_baseline", static_cast<double>(model.parameters) /
                                                         static_cast<double>(base.parameters)},
                          {"learning_rate", model.config.train.learning_rate},
                          {"tried_rates", tried},
                          {"loss", summary_of(model, "loss")},
                          {"valid_loss", summary_of(model, "valid_loss")},
                          {"accuracy", summary_of(model, "accuracy")},
                          {"metrics", metrics},
                          {"times",
                           {{"step_seconds", model.step_seconds},
                            {"tried_seconds", model.tried_seconds},
                            {"steps_per_second", 1.0 / model.step_seconds},
                            {"of_baseline", model.step_seconds / base.step_seconds}}},
                          {"memory_bytes", model.step_bytes},
                          {"runs", runs},
                          {"config", model.config.to_toml()}};
  }
  Json all{{"task", train::task_name(comparison.task)},
           {"seeds", comparison.seeds},
           {"baseline", base.name},
           {"steps", base.config.train.steps},
           {"environment", environment_json(comparison.environment)},
           {"times",
            {{"train_seconds", train_seconds(comparison)},
             {"train_hours", train_seconds(comparison) / 3600}}},
           {"found", verdicts(comparison)},
           {"models", models}};
  if (comparison.task == train::Task::kLanguageModel) {
    const double tokens = trained_tokens(base.config);
    all["tokens"] = tokens;
    all["corpus_tokens"] = comparison.corpus_tokens;
    all["epochs"] = tokens / static_cast<double>(comparison.corpus_tokens);
  }
  // Paths in the config need not be UTF-8.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string numbers_csv(const Comparison& comparison) {
  std::string text = "model,seed,name,value\n";
  const auto names = number_names(comparison);
  for (const ModelResult& model : comparison.models) {
    const std::string who = quoted(model.name);
    text += fmt::format("{0},,parameters,{1}\n{0},,step_seconds,{2}\n{0},,step_bytes,{3}\n", who,
                        model.parameters, model.step_seconds, model.step_bytes);
    for (const RunResult& run : model.runs) {
      for (const std::string& name : names) {
        const double value = number_of(run, name);
        if (!std::isfinite(value)) continue;
        text += fmt::format("{},{},{},{}\n", who, run.seed, name_field(name), value);
      }
    }
  }
  return text;
}

std::string curves_csv(const Comparison& comparison) {
  std::string text = "model,seed,step,loss,valid_loss,valid_accuracy\n";
  for (const ModelResult& model : comparison.models) {
    for (const RunResult& run : model.runs) {
      for (const CurvePoint& p : run.curve) {
        text += fmt::format("{},{},{},{},{},{}\n", quoted(model.name), run.seed, p.step, p.loss,
                            p.valid_loss, p.valid_accuracy);
      }
    }
  }
  return text;
}

std::string to_text(const Comparison& comparison) {
  size_t name_width = 18, width = 16;
  for (const ModelResult& model : comparison.models) width = std::max(width, model.name.size());
  const auto names = number_names(comparison);
  for (const std::string& name : names) name_width = std::max(name_width, name.size());
  std::string text = fmt::format("{:<{}}", "", name_width);
  const auto line = [&](const std::string& name, const auto& cell) {
    text += fmt::format("{:<{}}", name, name_width);
    for (const ModelResult& model : comparison.models) {
      text += "  " + right_aligned(cell(model), width);
    }
    text += "\n";
  };
  for (const ModelResult& model : comparison.models)
    text += "  " + right_aligned(model.name, width);
  text += "\n";
  const double base = static_cast<double>(comparison.models[comparison.baseline].parameters);
  line("parameters", [&](const ModelResult& m) {
    const double change = 100.0 * (static_cast<double>(m.parameters) / base - 1.0);
    return fmt::format("{} ({:+.2f} %)", m.parameters, change);
  });
  line("learning rate",
       [](const ModelResult& m) { return fmt::format("{:g}", m.config.train.learning_rate); });
  const bool several = comparison.seeds.size() > 1;
  for (const std::string& name : names) {
    line(name, [&](const ModelResult& m) { return mean_text(number_of(m, name), several); });
  }
  line("ms per step",
       [](const ModelResult& m) { return fmt::format("{:.1f}", 1e3 * m.step_seconds); });
  line("MiB of tensors", [](const ModelResult& m) {
    return fmt::format("{:.1f}", static_cast<double>(m.step_bytes) / (1 << 20));
  });
  const std::string environment = environment_line(comparison);
  return environment.empty() ? text : text + "\n" + environment + "\n";
}

std::vector<std::string> verdicts(const Comparison& comparison) {
  std::vector<std::string> sentences;
  for (size_t i = 0; i < comparison.models.size(); ++i) {
    if (i != comparison.baseline) sentences.push_back(verdict_on(comparison, i));
  }
  for (const ModelResult& model : comparison.models) {
    std::string left_out;
    for (const RunResult& run : model.runs) {
      if (!run.finite) left_out += (left_out.empty() ? "" : ", ") + std::to_string(run.seed);
    }
    if (left_out.empty()) continue;
    sentences.push_back(fmt::format("{}: updates of seed {} were not finite and were left out.",
                                    model.name, left_out));
  }
  return sentences;
}

void write_results(const std::string& folder, const Comparison& comparison,
                   const std::vector<std::string>& introduction,
                   const std::vector<analysis::NextCommand>& next) {
  std::filesystem::create_directories(folder);
  io::write_text(folder + "/results.json", to_json(comparison));
  io::write_text(folder + "/numbers.csv", numbers_csv(comparison));
  io::write_text(folder + "/curves.csv", curves_csv(comparison));
  write_report(folder + "/report.html", comparison, introduction, next);
}

}  // namespace diffattn::compare
