// SPDX-License-Identifier: Apache-2.0
#include "infer/likeliest.h"

#include <algorithm>

namespace diffattn::infer {

std::vector<Alternative> likeliest_tokens(const torch::Tensor& logits, int64_t count) {
  const auto log_p = logits.to(torch::kFloat32).log_softmax(-1);
  const auto [values, tokens] = log_p.topk(std::min(count, log_p.size(-1)));
  const auto p = values.cpu(), id = tokens.cpu();
  std::vector<Alternative> best;
  for (int64_t i = 0; i < p.numel(); ++i) {
    best.push_back({id.const_data_ptr<int64_t>()[i], p.const_data_ptr<float>()[i]});
  }
  return best;
}

}  // namespace diffattn::infer
