// SPDX-License-Identifier: Apache-2.0
#include "diffattn/analysis/attention_statistics.h"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <string>

#include "diffattn/error.h"
#include "nn/attention/text_rows.h"

namespace diffattn::analysis {
namespace {

using torch::Tensor;

/// How to compute the statistic of a head from those of its rows.
enum class Mean {
  kOfRows,     // mean over the rows
  kOfShares,   // share of visible entries: mean over the rows, weighted by their visible entries
  kOfEntries,  // sum over visible entries, divided by their number
  kOfLambda,   // mean of lambda, which is not a statistic of rows
};

struct Source {
  const char* key;
  Mean mean;
  Stat stat;
  bool of_two_maps = false;  // not defined for plain attention
};

/// The sources of attention_statistics(), in the same order.
constexpr std::array<Source, 10> kSources{{
    {"sparsity", Mean::kOfShares, kStatSparse},
    {"focus", Mean::kOfShares, kStatFocus},
    {"mean_abs", Mean::kOfEntries, kStatAbsSum},
    {"negative_mass", Mean::kOfRows, kStatNegativeMass},
    {"entropy", Mean::kOfRows, kStatEntropy},
    {"sink_mass", Mean::kOfRows, kStatSinkMass},
    {"row_max", Mean::kOfRows, kStatMax},
    {"noise_cancelled", Mean::kOfRows, kStatCancelled, true},
    {"lambda", Mean::kOfLambda, kStatCount, true},
    {"similarity", Mean::kOfRows, kStatOverlap, true},
}};

/// Sums the rows [R, H, kStatCount] for each head and source: [H, sources], in double precision.
Tensor source_sums(const Tensor& rows) {
  const Tensor visible = rows.select(-1, kStatVisible);  // [R, H]
  std::vector<Tensor> columns;
  for (const Source& source : kSources) {
    if (source.mean == Mean::kOfLambda) {
      columns.push_back(torch::zeros({rows.size(1)}, rows.options()));
      continue;
    }
    // A row that sees no column is 0 in every statistic, so it does not change the sums.
    Tensor values = rows.select(-1, source.stat);
    if (source.mean == Mean::kOfShares) values = values * visible;
    columns.push_back(values.sum(0));
  }
  return torch::stack(columns, 1).contiguous();
}

std::string count_text(size_t count, const char* what) {
  return std::to_string(count) + " " + what;
}

[[noreturn]] void refuse_calls(const std::string& expected, const std::string& got) {
  throw Error("diffattn: traces: expected " + expected + ", got " + got);
}

}  // namespace

std::vector<LayerCalls> calls_of(const std::vector<nn::AttentionTrace>& traces) {
  if (traces.empty() || traces.front().calls.empty()) {
    refuse_calls("a model with attention layers", "none");
  }
  const size_t count = traces.front().calls.size();
  std::vector<LayerCalls> out(count);
  for (const nn::AttentionTrace& trace : traces) {
    if (trace.calls.size() != count) {
      refuse_calls(count_text(count, "calls in every layer"), std::to_string(trace.calls.size()));
    }
    for (size_t i = 0; i < count; ++i) out[i].push_back(trace.calls[i]);
  }
  return out;
}

Tensor row_statistics(const nn::HeadTensors& call, double sparse_threshold,
                      const std::optional<Tensor>& row_lengths) {
  const torch::NoGradGuard no_grad;
  const Tensor rows = attention_stats(call.q1, call.q2, call.k1, call.k2, call.lambda, call.options,
                                      sparse_threshold)
                          .to(torch::kFloat64);
  const auto of_texts = nn::text_rows(call, row_lengths);
  if (!of_texts) return rows;
  return rows.masked_fill(of_texts->logical_not().unsqueeze(-1).unsqueeze(-1), 0.0);
}

void AttentionStatistics::add(const LayerCalls& calls) {
  std::vector<Tensor> rows;
  for (const nn::HeadTensors& call : calls) rows.push_back(row_statistics(call, sparse_threshold_));
  add(calls, rows);
}

void AttentionStatistics::add(const LayerCalls& calls, const std::vector<Tensor>& call_rows) {
  const torch::NoGradGuard no_grad;
  const bool first = layers_.empty();
  if (!first && calls.size() != layers_.size()) {
    refuse_calls(count_text(layers_.size(), "layers"), std::to_string(calls.size()));
  }
  if (call_rows.size() != calls.size()) {
    refuse_calls(count_text(calls.size(), "tensors of row statistics"),
                 std::to_string(call_rows.size()));
  }
  layers_.resize(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const nn::HeadTensors& call = calls[i];
    Layer& layer = layers_[i];
    const Tensor rows = call_rows[i].flatten(0, -3);  // [R, H, kStatCount]
    const auto heads = static_cast<size_t>(rows.size(1));
    if (first) {
      layer.heads.assign(heads, {std::vector<double>(kSources.size()), 0, 0, {}, 0});
      layer.plain = call.single_map;
      layer.shared_lambda = call.lambda.numel() == 1;
    } else if (heads != layer.heads.size()) {
      refuse_calls(count_text(layer.heads.size(), "heads"), std::to_string(heads));
    }
    const Tensor visible = rows.select(-1, kStatVisible);
    const Tensor sums = source_sums(rows).to(torch::kCPU);
    const Tensor seeing = (visible > 0).sum(0).to(torch::kFloat64).to(torch::kCPU);
    const Tensor entries = visible.sum(0).to(torch::kCPU);
    for (size_t h = 0; h < heads; ++h) {
      Head& head = layer.heads[h];
      const double* added = sums.const_data_ptr<double>() + h * kSources.size();
      for (size_t s = 0; s < kSources.size(); ++s) head.sums[s] += added[s];
      head.rows += seeing.const_data_ptr<double>()[h];
      head.entries += entries.const_data_ptr<double>()[h];
    }
    if (!call.single_map) add_lambda(layer, call, visible);
  }
}

void AttentionStatistics::add_lambda(Layer& layer, const nn::HeadTensors& call,
                                     const Tensor& visible) {
  const auto heads = static_cast<int64_t>(layer.heads.size());
  // Expands a scalar, [H] or [..., H] to [tokens, H].
  Tensor values = call.lambda.numel() == 1 ? call.lambda.reshape({1, 1}).expand({1, heads})
                                           : call.lambda.reshape({-1, heads});
  if (values.size(0) == visible.size(0)) {
    values = values.index_select(0, (visible > 0).any(1).nonzero().squeeze(1));
    if (values.size(0) == 0) return;
  }
  const Tensor wide = values.to(torch::kFloat64);
  const Tensor sum = wide.sum(0).to(torch::kCPU).contiguous();
  const Tensor low = wide.amin(0).to(torch::kCPU).contiguous();
  const Tensor high = wide.amax(0).to(torch::kCPU).contiguous();
  for (int64_t h = 0; h < heads; ++h) {
    Head& head = layer.heads[static_cast<size_t>(h)];
    const double smallest = low.const_data_ptr<double>()[h];
    const double largest = high.const_data_ptr<double>()[h];
    head.lambda.min = head.lambdas == 0 ? smallest : std::min(head.lambda.min, smallest);
    head.lambda.max = head.lambdas == 0 ? largest : std::max(head.lambda.max, largest);
    head.lambda.mean += sum.const_data_ptr<double>()[h];
    head.lambdas += static_cast<double>(wide.size(0));
  }
}

StatisticsTable AttentionStatistics::table() const {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  StatisticsTable table;
  table.names = attention_statistics();
  if (sparse_threshold_ != kSparseThreshold) {
    std::ostringstream text;
    text << "Share of the entries with |A| < " << sparse_threshold_ << ".";
    table.names.front().description = text.str();
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    for (size_t h = 0; h < layers_[l].heads.size(); ++h) {
      const Head& head = layers_[l].heads[h];
      StatisticsTable::Row row{static_cast<int64_t>(l), static_cast<int64_t>(h), {}};
      for (size_t s = 0; s < kSources.size(); ++s) {
        const bool missing = head.rows == 0 || (kSources[s].of_two_maps && layers_[l].plain);
        const bool by_rows = kSources[s].mean == Mean::kOfRows;
        const double mean = kSources[s].mean == Mean::kOfLambda
                                ? head.lambda.mean / head.lambdas
                                : head.sums[s] / (by_rows ? head.rows : head.entries);
        row.values.push_back(missing ? kNone : mean);
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

std::vector<LambdaLayer> AttentionStatistics::lambda() const {
  std::vector<LambdaLayer> out;
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (layers_[l].plain) continue;
    LambdaLayer layer;
    layer.layer = static_cast<int64_t>(l);
    for (const Head& head : layers_[l].heads) {
      layer.heads.push_back({head.lambda.mean / head.lambdas, head.lambda.min, head.lambda.max});
      if (layers_[l].shared_lambda) break;
    }
    out.push_back(std::move(layer));
  }
  return out;
}

}  // namespace diffattn::analysis
