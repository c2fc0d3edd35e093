// SPDX-License-Identifier: Apache-2.0
#include "nn/models/token_ids.h"

#include "diffattn/ops.h"

namespace diffattn::nn {

void check_token_ids(const torch::Tensor& ids, const torch::Tensor& embedding) {
  if (!ids.defined()) throw_argument_error("ids", "token ids", "an undefined tensor");
  const auto type = ids.scalar_type();
  if (type != torch::kLong && type != torch::kInt) {
    throw_argument_error("ids", "int64 or int32", c10::str(type));
  }
  if (ids.dim() != 1 && ids.dim() != 2) {
    throw_argument_error("ids", "shape [B, N], or [total] for packed sequences",
                         c10::str("shape ", ids.sizes()));
  }
  if (ids.device() != embedding.device()) {
    throw_argument_error("ids", c10::str("a tensor on ", embedding.device(), ", like the model"),
                         c10::str("one on ", ids.device()));
  }
  if (!ids.device().is_cpu() || ids.numel() == 0) return;
  const auto [low, high] = at::aminmax(ids);
  const int64_t first = low.item<int64_t>(), last = high.item<int64_t>();
  if (first >= 0 && last < embedding.size(0)) return;
  throw_argument_error("ids",
                       c10::str("token ids in [0, ", embedding.size(0) - 1, "], the vocabulary"),
                       std::to_string(first < 0 ? first : last));
}

void check_hidden_states(const torch::Tensor& hidden, const torch::Tensor& head_weight) {
  if (!hidden.defined()) throw_argument_error("hidden", "a tensor", "an undefined tensor");
  if (!hidden.is_floating_point()) {
    throw_argument_error("hidden",
                         "hidden states of a floating-point type; for token ids call "
                         "logits({.ids = ids})",
                         c10::str(hidden.scalar_type()));
  }
  if (hidden.dim() > 0 && hidden.size(-1) == head_weight.size(1)) return;
  throw_argument_error("hidden", c10::str("shape [..., ", head_weight.size(1), "]"),
                       c10::str("shape ", hidden.sizes()));
}

}  // namespace diffattn::nn
