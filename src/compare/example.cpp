// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compare/haystack.h"
#include "compare/measure.h"

namespace diffattn::compare {
namespace {

constexpr int64_t kExampleLength = 256;  // tokens; a longer haystack shows no more

analysis::Sequence named_tokens(const data::TaskSequence& sequence,
                                const data::NeedleOptions& options) {
  analysis::Sequence result;
  result.name = std::to_string(options.needles) + " needles, question about the one in the middle";
  for (const int64_t id : sequence.ids) result.rows.push_back(data::needle_label(id, options));
  result.regions = haystack_regions(sequence, options);
  return result;
}

}  // namespace

void draw_example(std::vector<Trained>& trained, Comparison& comparison) {
  if (comparison.task != train::Task::kNeedle) return;
  data::NeedleOptions options = trained.front().config.needle;
  options.length = std::min(options.length, kExampleLength);
  options.needles = std::min(options.needles, options.length / 2);
  options.asked = std::min(options.asked, options.needles);
  options.min_needles = 0;
  options.questions = 1;
  options.depth = 0.5;
  const auto seed = static_cast<uint64_t>(trained.front().config.seed);
  const data::TaskSequence sequence =
      data::needle_task(options)->example(seed, data::Split::kValidation, 0);
  for (size_t i = 0; i < trained.size(); ++i) {
    const torch::NoGradGuard no_grad;
    train::TaskModel& model = trained[i].trainer->task_model();
    model.module()->eval();
    train::Batch batch;
    batch.ids = torch::tensor(sequence.ids).unsqueeze(0);
    batch.labels = torch::tensor(sequence.labels).unsqueeze(0);
    train::TaskModel::Traces traces;
    const train::Predictions made = model.predict(batch.to(model.device()), &traces);
    const bool right = (made.predicted == made.labels).all().item<bool>();
    std::vector<analysis::LayerCalls> calls = analysis::calls_of(traces);
    for (size_t path = 0; path < calls.size(); ++path) {
      analysis::ModelAttention attention;
      attention.name = comparison.models[i].name;
      if (calls.size() > 1) attention.name += ", path " + std::to_string(path);
      attention.description =
          std::string(right ? "answers this question rightly" : "answers this question wrongly");
      attention.sequence =
          analysis::path_sequence(named_tokens(sequence, options), static_cast<int64_t>(path));
      attention.calls = std::move(calls[path]);
      analysis::describe(attention);
      comparison.attention.push_back(std::move(attention));
    }
  }
}

}  // namespace diffattn::compare
