// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <utility>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/route.h"

namespace diffattn::nn {

/// Computes the attention of sequences whose rows several processes share.
class SharedRows {
 public:
  virtual ~SharedRows() = default;
  /// Computes this process's rows of the attention from its rows of q, k and v.
  virtual torch::Tensor attend(Route route, const HeadTensors& heads) = 0;

  /// Lets `rows` compute the attention of this thread during its life. Null: this process has all
  /// rows.
  class Scope {
   public:
    explicit Scope(SharedRows* rows) : outer_(std::exchange(innermost(), rows)) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { innermost() = outer_; }

   private:
    SharedRows* outer_;
  };
  static SharedRows* current() { return innermost(); }

 private:
  static SharedRows*& innermost();
};

/// Computes `attend` for a process that has all rows.
torch::Tensor attend_here(Route route, const HeadTensors& heads);

}  // namespace diffattn::nn
