// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>

#include "diffattn/train/batch.h"

namespace diffattn::train {

/// Rows of counting sequences modulo 13. The state is one number.
class CountingRows : public BatchSource {
 public:
  Batch next() override {
    const torch::Tensor row = (torch::arange(9) + 5 * state_++).remainder(13).unsqueeze(0);
    return {row.slice(1, 0, 8).contiguous(), row.slice(1, 1).contiguous(), {}, {}};
  }
  std::string position() const override { return std::to_string(state_); }
  void seek(const std::string& position) override { state_ = std::stoll(position); }

 private:
  int64_t state_ = 0;
};

}  // namespace diffattn::train
