// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

namespace diffattn::train {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

/// AdamW by torch's fused operator, with the state in the open so that it can be saved as named
/// tensors and restored bit for bit.
class AdamW {
 public:
  /// Takes the parameters that require gradients; a tied one counts once. Norms, biases, lambdas
  /// and everything else with fewer than two dimensions are not decayed.
  AdamW(const torch::nn::Module& model, const AdamWOptions& options);

  /// Norm of all gradients as one vector, float32 on their device. Nothing waits for it.
  torch::Tensor gradient_norm() const;
  /// Multiplies every gradient by min(1, max_norm / norm).
  void clip_gradients(const torch::Tensor& norm, double max_norm);
  /// One update. Parameters without a gradient are left as they are.
  void step(double learning_rate);
  void zero_grad();

  /// First and second moments and the step count, "<parameter>.exp_avg" and so on.
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
};

/// Does weight decay act on this parameter?
bool is_decayed(const std::string& name, const torch::Tensor& parameter);

}  // namespace diffattn::train
