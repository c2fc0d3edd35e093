// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace diffattn {
class FusedAdamW;
}

namespace diffattn::train {

class WorkingCopy;

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

/// A tensor that an optimiser updates.
struct OptimizedTensor {
  std::string name;
  torch::Tensor tensor;
  bool decayed = false;
};

/// Returns the parameters that require gradients, each tied one once.
std::vector<OptimizedTensor> optimized_tensors(const torch::nn::Module& model);

/// AdamW, on a GPU with our kernels, else on torch's fused operator. Its state can be saved as
/// named tensors and restored bit for bit.
class AdamW {
 public:
  /// Takes the parameters that require gradients, each tied one once. Weight decay acts on those
  /// for which is_decayed() is true. `copies` may be null; on a GPU, `update` writes these copies
  /// of the parameters too.
  AdamW(const torch::nn::Module& model, const AdamWOptions& options,
        const WorkingCopy* copies = nullptr);
  /// Takes any tensors. `sum_over_processes` replaces a sum of squares by that of all processes, if
  /// each has only a part of the tensors.
  AdamW(std::vector<OptimizedTensor> tensors, const AdamWOptions& options,
        const WorkingCopy* copies = nullptr,
        std::function<void(torch::Tensor&)> sum_over_processes = {});
  AdamW(AdamW&&) noexcept;
  ~AdamW();

  /// Clips the gradients to max_norm (0: no clipping) and updates all parameters that have one. If
  /// `loss` (float64 scalar) or the gradient's norm is not finite, nothing changes. Returns the
  /// norm before clipping. On a GPU the host does not wait for the result.
  torch::Tensor update(const torch::Tensor& loss, double learning_rate, double max_norm);

  /// Returns the norm of all gradients together, float32 on their device, without a
  /// synchronisation.
  torch::Tensor gradient_norm() const;
  /// Multiplies every gradient by min(1, max_norm / norm).
  void clip_gradients(const torch::Tensor& norm, double max_norm);
  /// Updates all parameters that have a gradient.
  void step(double learning_rate);
  void zero_grad();

  /// Returns the moments and step counts: "<parameter>.exp_avg", ".exp_avg_sq" and ".step". The
  /// tensors share memory with the optimiser.
  std::vector<std::pair<std::string, torch::Tensor>> state() const;

 private:
  struct Group {
    double weight_decay;
    std::vector<std::string> names;
    std::vector<torch::Tensor> parameters, exp_avg, exp_avg_sq, steps;
  };
  std::vector<torch::Tensor> gradients() const;

  AdamWOptions options_;
  std::vector<Group> groups_;
  std::function<void(torch::Tensor&)> sum_over_processes_;
  std::unique_ptr<FusedAdamW> fused_;  // null where there is no kernel
};

/// True if weight decay acts on this parameter: at least two dimensions, and no lambda. Norms and
/// biases are not decayed.
bool is_decayed(const std::string& name, const torch::Tensor& parameter);

}  // namespace diffattn::train
