// SPDX-License-Identifier: Apache-2.0
#include "serve/engine/attention_row.h"

#include "diffattn/ops.h"

namespace diffattn::serve {
namespace {

std::vector<float> floats_of(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.to(torch::kCPU, torch::kFloat32).flatten().contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

/// Returns lambda of a head in the last row.
float lambda_of(const torch::Tensor& lambda, int64_t head) {
  const torch::Tensor last = lambda.dim() == 3 ? lambda[0][-1] : lambda.flatten();
  return last[last.numel() == 1 ? 0 : head].item<float>();
}

}  // namespace

AttentionRow attention_of_last(nn::CausalLM& model, const std::vector<int64_t>& tokens) {
  const torch::NoGradGuard no_gradients;
  nn::DecoderInput input;
  input.ids = torch::tensor(tokens, torch::kLong).unsqueeze(0).to(model->head_weight().device());
  std::vector<nn::AttentionTrace> traces;
  input.traces = &traces;
  model->forward(input);
  AttentionRow row;
  if (traces.empty() || traces.back().calls.empty()) {
    row.error = "the last layer of this model has no attention map";
    return row;
  }
  const nn::HeadTensors& call = traces.back().calls.back();
  const int64_t last = call.q1.size(1) - 1;
  const torch::Tensor maps =
      attention_map(call.q1, call.q2, call.k1, call.k2, call.lambda, call.options,
                    MapOptions().row_begin(last).row_end(last + 1))[0];  // [H, 3, 1, N]
  for (int64_t head = 0; head < maps.size(0); ++head) {
    row.heads.push_back({.lambda = lambda_of(call.lambda, head),
                         .first = floats_of(maps[head][0]),
                         .second = floats_of(maps[head][1]),
                         .difference = floats_of(maps[head][2])});
  }
  return row;
}

}  // namespace diffattn::serve
