// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "compare/measure.h"
#include "diffattn/ops.h"

namespace diffattn::compare {
namespace {

using torch::Tensor;
using train::Batch;

constexpr std::array<int64_t, 4> kNeedleCounts = {1, 2, 4, 6};
constexpr std::array<double, 5> kDepths = {0.0, 0.25, 0.5, 0.75, 1.0};
constexpr int64_t kMapSequences = 16;     // per NeedleCell, for the attention shares
constexpr int64_t kCellTokens = 1 << 18;  // per batch

/// Validation sequences of a task, with one length.
struct Sequences {
  Batch batch;
  std::vector<data::TaskSequence> all;
};

Sequences draw_sequences(const data::SequenceTask& task, uint64_t seed, int64_t first,
                         int64_t count) {
  data::RowBatch rows;
  rows.rows = count;
  rows.seq_len = task.length();
  Sequences result;
  for (int64_t i = 0; i < count; ++i) {
    result.all.push_back(
        task.example(seed, data::Split::kValidation, static_cast<uint64_t>(first + i)));
    const data::TaskSequence& s = result.all.back();
    rows.ids.insert(rows.ids.end(), s.ids.begin(), s.ids.end());
    rows.labels.insert(rows.labels.end(), s.labels.begin(), s.labels.end());
  }
  result.batch = train::sequence_batch(rows);
  return result;
}

/// Shares of attention in the row of the first question.
struct Shares {
  Tensor answer, noise;  // [layers * heads] sums over sequences
};

Shares shares_of(const train::TaskModel::Traces& traces, const Sequences& sequences,
                 const data::NeedleOptions& options) {
  const int64_t row = sequences.all.front().questions.front().asked;
  const Tensor ids = sequences.batch.ids.slice(1, 0, options.length);
  const Tensor noise = (ids >= data::kTaskTokens + options.keys + options.values);  // [B, length]
  Tensor answer = torch::zeros_like(noise);
  for (size_t b = 0; b < sequences.all.size(); ++b) {
    const int64_t value = sequences.all[b].questions.front().answer;
    answer[static_cast<int64_t>(b)].slice(0, value - 1, value + 1) = true;
  }
  std::vector<Tensor> to_answer, to_noise;
  for (const nn::AttentionTrace& layer : traces) {
    for (const nn::HeadTensors& h : layer.calls) {
      const Tensor map = attention_map(h.q1, h.q2, h.k1, h.k2, h.lambda, h.options,
                                       MapOptions().row_begin(row).row_end(row + 1))
                             .select(2, 2)  // the difference
                             .select(2, 0)
                             .to(torch::kCPU, torch::kFloat64)
                             .abs();  // [B, H, N]
      const Tensor share = map / map.sum(-1, /*keepdim=*/true).clamp_min(1e-30);
      // Path i of introspective attention sees i + 1 adjacent keys of every token: we add them up.
      const Tensor per_token = share.unflatten(-1, {sequences.batch.ids.size(1), -1}).sum(-1);
      const Tensor hay = per_token.slice(-1, 0, options.length);
      to_answer.push_back((hay * answer.unsqueeze(1)).sum(-1).sum(0));
      to_noise.push_back((hay * noise.unsqueeze(1)).sum(-1).sum(0));
    }
  }
  return {torch::cat(to_answer), torch::cat(to_noise)};
}

void count_right(const train::Predictions& made, const Sequences& sequences, NeedleCell& cell) {
  const Tensor right = (made.predicted == made.labels).to(torch::kCPU);
  const auto per_sequence = static_cast<int64_t>(sequences.all.front().questions.size());
  const Tensor table = right.view({-1, per_sequence});  // [sequences, questions]
  cell.right += right.sum().item<int64_t>();
  cell.questions += right.numel();
  cell.first_right += table.select(1, 0).sum().item<int64_t>();
  cell.first_questions += table.size(0);
}

NeedleCell measure_cell(train::TaskModel& model, const data::NeedleOptions& options, uint64_t seed,
                        int64_t samples) {
  NeedleCell cell{.needles = options.needles, .asked = options.asked, .depth = *options.depth};
  const auto task = data::needle_task(options);
  const int64_t at_once = std::max<int64_t>(1, kCellTokens / task->length());
  for (int64_t done = 0; done < samples; done += at_once) {
    const Sequences sequences =
        draw_sequences(*task, seed, done, std::min(at_once, samples - done));
    count_right(model.predict(sequences.batch.to(model.device())), sequences, cell);
  }
  const Sequences few = draw_sequences(*task, seed, 0, std::min({kMapSequences, samples, at_once}));
  train::TaskModel::Traces traces;
  model.predict(few.batch.to(model.device()), &traces);
  const Shares shares = shares_of(traces, few, options);
  const auto count = static_cast<double>(few.all.size());
  cell.answer = shares.answer.mean().item<double>() / count;
  cell.noise = shares.noise.mean().item<double>() / count;
  cell.strongest_answer = shares.answer.max().item<double>() / count;
  return cell;
}

}  // namespace

std::vector<NeedleCell> measure_needles(train::TaskModel& model, const train::RunConfig& config,
                                        int64_t samples) {
  const torch::NoGradGuard no_grad;
  model.module()->eval();
  std::vector<NeedleCell> cells;
  for (const int64_t needles : kNeedleCounts) {
    data::NeedleOptions options = config.needle;
    if (needles > options.keys || 2 * needles > options.length) continue;
    options.needles = needles;
    options.min_needles = 0;
    options.asked = options.questions = std::min<int64_t>(2, needles);
    for (const double depth : kDepths) {
      options.depth = depth;
      cells.push_back(measure_cell(model, options, static_cast<uint64_t>(config.seed), samples));
    }
  }
  return cells;
}

}  // namespace diffattn::compare
