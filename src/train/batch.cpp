// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/batch.h"

namespace diffattn::train {

nn::DecoderInput Batch::model_input() const {
  nn::DecoderInput input;
  input.ids = ids;
  input.mask = mask;
  input.positions = positions;
  return input;
}

Batch Batch::to(torch::Device device) const {
  if (device.is_cpu()) return *this;
  const auto move = [&](const std::optional<torch::Tensor>& tensor) {
    return tensor ? std::optional(tensor->to(device)) : std::nullopt;
  };
  Batch moved{ids.to(device),
              labels.to(device),
              mask,
              move(positions),
              move(answer_rows),
              target_ids.defined() ? target_ids.to(device) : target_ids};
  moved.mask.mask(move(mask.mask()))
      .key_starts(move(mask.key_starts()))
      .key_lengths(move(mask.key_lengths()))
      .cu_seqlens_q(move(mask.cu_seqlens_q()))
      .cu_seqlens_k(move(mask.cu_seqlens_k()));
  return moved;
}

}  // namespace diffattn::train
