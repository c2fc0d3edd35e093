// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/training/progress.h"

#include <fmt/core.h>

#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/terminal/print.h"

namespace diffattn::app {

void RecentUpdates::add(const train::StepReport& report) {
  reports_.push_back(report);
  if (reports_.size() > kUpdates) reports_.pop_front();
}

std::string RecentUpdates::line() const {
  double loss = 0.0, seconds = 0.0, used = 0.0, tokens = 0.0;
  int64_t updates = 0;
  for (const train::StepReport& report : reports_) {
    seconds += report.seconds;
    used += report.utilisation * report.seconds;
    tokens += static_cast<double>(report.model_tokens);
    if (report.skipped) continue;
    loss += report.loss;
    ++updates;
  }
  const train::StepReport& last = reports_.back();
  return fmt::format("{}loss {:.4f}  {:.0f} tok/s  lr {:.2e}  |g| {:.2f}  MFU {:.0f} %",
                     last.skipped ? "skipped: not finite  " : "",
                     updates > 0 ? loss / static_cast<double>(updates) : last.loss,
                     tokens / seconds, last.learning_rate, last.gradient_norm,
                     100.0 * used / seconds);
}

void TrainingProgress::step(const train::StepReport& report) {
  recent_.add(report);
  const std::string line = recent_.line();
  bar_.step(line);
  last_loss_ = report.loss;
  if (!bar_.shown() && (report.step % config_.train.log_every == 0 || report.skipped)) {
    print_note("step {}/{}  {}\n", report.step, config_.train.steps, line);
  }
}

void TrainingProgress::evaluation(int64_t step, const train::Evaluation& result, bool best) {
  bar_.clear();
  const bool has_perplexity = config_.task != train::Task::kClassify;  // that of a text
  print_note(
      "step {}: validation loss {:.4f}, {}accuracy {:.3f}{}\n", step, result.loss(),
      has_perplexity ? fmt::format("perplexity {}, ", perplexity_text(result.perplexity(), 2)) : "",
      result.accuracy(), best ? "  (best)" : "");
  valid_loss_ = result.loss();
  valid_accuracy_ = result.accuracy();
}

void TrainingProgress::stopping(int64_t step) {
  bar_.end_line();  // the terminal has written ^C behind the bar
  print_note("saving step {}\n", step);
}

}  // namespace diffattn::app
