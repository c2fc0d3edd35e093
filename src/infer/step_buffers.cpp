// SPDX-License-Identifier: Apache-2.0
#include "infer/step_buffers.h"

namespace diffattn::infer {

StepBuffers::StepBuffers(int64_t row_count, int64_t pages, const StepWidths& w,
                         const torch::TensorOptions& options)
    : rows(row_count), table_pages(pages), widths(w) {
  const auto numbers = options.dtype(torch::kInt), floats = options.dtype(torch::kFloat32);
  const auto bytes = options.dtype(torch::kByte);
  tokens = torch::zeros({rows}, numbers);
  positions = torch::zeros({rows}, numbers);
  lengths = torch::ones({rows}, numbers);
  steps = torch::full({rows}, -1, numbers);  // idle
  table = torch::zeros({rows, table_pages}, numbers);
  rules = torch::zeros({rows, static_cast<int64_t>(sizeof(token::SamplingRule))}, bytes);
  counts = torch::zeros({rows, w.vocabulary}, options.dtype(torch::kShort));
  const bool on_host = options.device().is_cpu();
  chosen = torch::zeros({rows, token::Sampling::kRing, static_cast<int64_t>(sizeof(token::Chosen))},
                        torch::TensorOptions().dtype(torch::kByte).pinned_memory(!on_host));
  x = torch::zeros({rows, w.hidden}, floats);
  scaled = torch::zeros({rows, w.hidden}, on_host ? floats : options);
  squares = torch::zeros({rows, token::Residual::kMaxParts}, floats);
  q = torch::zeros({rows, w.queries}, options);
  lambda = torch::zeros({rows, w.heads}, floats);
  heads = torch::zeros({rows, w.outputs}, options);
  inner = torch::zeros({rows, w.inner}, options);
  logits = torch::zeros({rows, w.vocabulary}, floats);
}

void StepBuffers::take_state(const StepBuffers& from) {
  const auto copy = [&](const torch::Tensor& to, const torch::Tensor& state) {
    to.narrow(0, 0, from.rows).copy_(state);
  };
  copy(tokens, from.tokens);
  copy(positions, from.positions);
  copy(lengths, from.lengths);
  copy(steps, from.steps);
  copy(rules, from.rules);
  copy(counts, from.counts);
  copy(chosen, from.chosen);
  copy(table.narrow(1, 0, from.table_pages), from.table);
}

token::Batch StepBuffers::batch(int64_t count) const {
  const auto type = q.scalar_type();
  return {.dtype = type == torch::kFloat32   ? Dtype::kFloat32
                   : type == torch::kFloat16 ? Dtype::kFloat16
                                             : Dtype::kBFloat16,
          .rows = static_cast<int>(count),
          .tokens = tokens.mutable_data_ptr<int32_t>(),
          .positions = positions.mutable_data_ptr<int32_t>(),
          .lengths = lengths.mutable_data_ptr<int32_t>()};
}

token::Residual StepBuffers::residual() const {
  return {.x = x.mutable_data_ptr<float>(),
          .scaled = scaled.mutable_data_ptr(),
          .squares = squares.mutable_data_ptr<float>(),
          .width = static_cast<int>(widths.hidden)};
}

token::Sampling StepBuffers::sampling() const {
  return {.logits = logits.const_data_ptr<float>(),
          .vocabulary = static_cast<int>(widths.vocabulary),
          .rules = static_cast<const token::SamplingRule*>(rules.const_data_ptr()),
          .counts = reinterpret_cast<uint16_t*>(counts.mutable_data_ptr<int16_t>()),
          .steps = steps.mutable_data_ptr<int32_t>(),
          .chosen = static_cast<token::Chosen*>(chosen.mutable_data_ptr())};
}

}  // namespace diffattn::infer
