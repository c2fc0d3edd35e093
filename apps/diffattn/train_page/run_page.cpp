// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/train_page/run_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/diffattn/terminal/print.h"
#include "diffattn/analysis/report.h"
#include "diffattn/io/file.h"

namespace diffattn::app {
namespace {

using analysis::Curves;
using analysis::Series;
using nlohmann::json;

constexpr uint64_t kMostMetricsBytes = uint64_t{4} << 30;
constexpr size_t kMostPoints = 1000;  // per curve
constexpr size_t kMostLayers = 6;     // with a curve of lambda: the page has six colours
constexpr size_t kShownSteps = 4;     // with samples

/// The points of every metric of a run.
using Metrics = std::map<std::string, Series>;

Metrics read_metrics(const std::string& folder) {
  Metrics metrics;
  const std::string path = folder + "/metrics.jsonl";
  if (!std::filesystem::exists(path)) return metrics;
  std::istringstream lines(io::read_text(path, kMostMetricsBytes));
  for (std::string line; std::getline(lines, line);) {
    const json values = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!values.is_object() || !values.contains("step")) continue;
    for (const auto& [name, value] : values.items()) {
      if (name == "step" || !value.is_number()) continue;
      metrics[name].x.push_back(values["step"]);
      metrics[name].y.push_back(value);
    }
  }
  return metrics;
}

/// Replaces neighbouring points by their mean until at most kMostPoints are left.
Series thinned(const Series& series) {
  const size_t each = (series.x.size() + kMostPoints - 1) / kMostPoints;
  if (each <= 1) return series;
  Series out;
  out.name = series.name;
  for (size_t begin = 0; begin < series.x.size(); begin += each) {
    const size_t end = std::min(series.x.size(), begin + each);
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += series.y[i];
    out.x.push_back(series.x[end - 1]);
    out.y.push_back(sum / static_cast<double>(end - begin));
  }
  return out;
}

/// Adds a chart of those of the named metrics that the run has; `names`: metric and label.
void add_chart(const Metrics& metrics, const std::string& title, const std::string& y_label,
               const std::vector<std::pair<std::string, std::string>>& names,
               analysis::Report& report) {
  Curves curves;
  curves.name = title;
  curves.x_label = "step";
  curves.y_label = y_label;
  for (const auto& [metric, label] : names) {
    const auto found = metrics.find(metric);
    if (found == metrics.end()) continue;
    curves.series.push_back(thinned(found->second));
    curves.series.back().name = label;
  }
  if (!curves.series.empty()) report.curves.push_back(std::move(curves));
}

void add_lambda(const Metrics& metrics, analysis::Report& report) {
  std::vector<std::pair<std::string, std::string>> layers;
  for (size_t layer = 0; layer < metrics.size(); ++layer) {
    const std::string name = fmt::format("layer.{}.lambda", layer);
    if (metrics.contains(name)) layers.emplace_back(name, fmt::format("layer {}", layer));
  }
  const size_t count = layers.size();
  std::vector<std::pair<std::string, std::string>> shown;
  const size_t most = std::min(count, kMostLayers);
  for (size_t i = 0; i < most; ++i) {
    shown.push_back(layers[most == 1 ? 0 : i * (count - 1) / (most - 1)]);
  }
  add_chart(metrics, "λ per layer", "λ", shown, report);
  if (most < count) report.curves.back().note = fmt::format("{} of {} layers.", most, count);
}

void add_samples(const std::vector<Sample>& samples, analysis::Report& report) {
  for (auto sample = samples.rbegin(); sample != samples.rend(); ++sample) {
    const std::string name = fmt::format("Samples of step {}", sample->step);
    if (report.examples.empty() || report.examples.back().name != name) {
      if (report.examples.size() == kShownSteps) return;
      report.examples.push_back({name, "", {}});
    }
    auto& lines = report.examples.back().lines;
    lines.insert(lines.begin(), {sample->prompt, {{sample->text, ""}}});
  }
}

std::string state_in_words(const Metrics& metrics, const train::RunConfig& config, int64_t step) {
  std::string text = fmt::format("Step {} of {}", step, config.train.steps);
  if (const auto loss = metrics.find("loss"); loss != metrics.end()) {
    text += fmt::format(", training loss {:.4f}", loss->second.y.back());
  }
  const auto valid = metrics.find("valid_loss");
  if (valid == metrics.end()) return text + ".";
  const auto& y = valid->second.y;
  const auto best = std::ranges::min_element(y);
  const auto at = valid->second.x[static_cast<size_t>(best - y.begin())];
  return text + fmt::format(", validation loss {:.4f}. The best was {:.4f} at step {:.0f}.",
                            y.back(), *best, at);
}

}  // namespace

void write_run_page(const std::string& folder, const train::RunConfig& config, int64_t step,
                    const std::vector<Sample>& samples) {
  const Metrics metrics = read_metrics(folder);
  analysis::Report report;
  report.title = "Training of " + std::filesystem::weakly_canonical(folder).filename().string();
  report.subtitle =
      fmt::format("task {}, {}, {} layers, seed {}", train::task_name(config.task),
                  config.model.attention, config.model.num_hidden_layers, config.seed);
  report.verdict = {state_in_words(metrics, config, step)};
  report.notes = {"The run writes this page at each evaluation: reload it to see the newest."};
  add_chart(metrics, "loss", "loss", {{"loss", "training"}, {"valid_loss", "validation"}}, report);
  add_chart(metrics, "validation accuracy", "accuracy", {{"valid_accuracy", "validation"}}, report);
  add_chart(metrics, "learning rate", "learning rate", {{"learning_rate", "learning rate"}},
            report);
  add_chart(metrics, "gradient norm", "norm before clipping", {{"gradient_norm", "gradient norm"}},
            report);
  add_lambda(metrics, report);
  add_samples(samples, report);
  analysis::ReportWriter(folder + "/report.html", report).commit();
}

RunPage::RunPage(const std::string& folder, const train::RunConfig& config,
                 const train::TaskData& data, train::Run& run)
    : folder_(folder),
      config_(config),
      data_(data),
      run_(run),
      prompts_(data.tokenizer ? prompts_of(config.train.sample_prompts)
                              : std::vector<std::string>()),
      samples_(folder, run.trainer().state.step) {}

void RunPage::refresh(int64_t step) {
  refreshed_ = step;
  if (!prompts_.empty()) {
    const auto written =
        write_samples(run_.trainer().task_model(), *data_.tokenizer, prompts_, step);
    for (const Sample& sample : written) {
      print_note("step {}: {} [{}]\n", sample.step, sample.prompt, sample.text);
    }
    samples_.add(written);
  }
  write_run_page(folder_, config_, step, samples_.all());
}

void RunPage::finish() {
  const int64_t step = run_.trainer().state.step;
  if (refreshed_ != step) refresh(step);
}

}  // namespace diffattn::app
