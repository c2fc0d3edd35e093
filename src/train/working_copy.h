// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

namespace diffattn::train {

/// bfloat16 copies of a model's matrices (linear maps and embeddings) for training in mixed
/// precision. The model keeps its float32 parameters; only inside an `InUse` scope do the same
/// parameters show the copies, so that products need no casts, gradients come in bfloat16, and the
/// residual stream, which begins with an embedding, is bfloat16 too.
///
/// The copies lie in one memory block in the order of the modules: matrices that read the same
/// input, as q, k and v, then form one larger matrix without a copy.
class WorkingCopy {
 public:
  explicit WorkingCopy(const torch::nn::Module& model);

  /// Returns the copy of a parameter for an optimiser that writes both; undefined if there is none.
  torch::Tensor copy_of(const torch::Tensor& parameter) const;

  /// Makes the next scope renew all copies, for parameters that somebody changed in other ways.
  void forget();

  /// A scope in which the parameters show their copies. It first renews the copies of parameters
  /// that somebody has changed through torch since, for example to load a checkpoint.
  class InUse {
   public:
    explicit InUse(WorkingCopy& copies);
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;
    ~InUse();

   private:
    WorkingCopy& copies_;
  };

  /// Adds the bfloat16 gradients of a micro-batch to float32 sums and removes them.
  void collect_gradients();
  /// Makes the sums the gradients of their parameters.
  void deliver_gradients();

 private:
  struct Entry {
    torch::Tensor parameter = {}, copy = {};
    torch::Tensor master = {};        // float32 data of the parameter; defined inside a scope
    torch::Tensor sum = {};           // of gradients
    const void* seen_data = nullptr;  // the float32 data and version that the copy belongs to
    int64_t seen_version = -1;
  };
  void renew();

  std::vector<Entry> entries_;
};

}  // namespace diffattn::train
