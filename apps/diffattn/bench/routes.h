// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "diffattn/nn/route.h"

/// The ways to compute one differential attention with today's torch, beside the fused operator.
namespace diffattn::app {

/// Tensors of one layer, [B, H, N, width] as torch's attention wants them.
struct LayerTensors {
  torch::Tensor q1, q2, k1, k2;  // [B, H, N, D]
  torch::Tensor v;               // [B, H, N, 2D]
  torch::Tensor lambda;          // one number, or [B, N, H]

  /// Packed documents lie one after another, B = 1; empty: whole sequences.
  std::vector<int64_t> lengths = {};

  std::vector<torch::Tensor> leaves() const { return {q1, q2, k1, k2, v, lambda}; }
};

/// Random tensors that want gradients. lambda_of_tokens: [B, N, H] instead of one number.
LayerTensors make_layer(int64_t batch, int64_t heads, int64_t seq, int64_t head_dim,
                        torch::TensorOptions options, bool lambda_of_tokens = false);

/// Which kernels torch's attention may use. On a GPU it would pick by its own rules.
enum class SdpaKernels { kAny, kCudnn, kFlash, kMemoryEfficient };

/// Leaves torch's attention no other kernels while it lives; calls that they do not take throw.
class ForcedKernels {
 public:
  explicit ForcedKernels(SdpaKernels kernels);
  ~ForcedKernels();
  ForcedKernels(const ForcedKernels&) = delete;
  ForcedKernels& operator=(const ForcedKernels&) = delete;

 private:
  std::vector<bool> before_;
};

struct Route {
  std::string name;
  bool plain = false;  // ordinary attention of equal width: another function, for comparison
  SdpaKernels kernels = SdpaKernels::kAny;
  std::function<torch::Tensor(const LayerTensors&, const AttentionOptions&)> compute;

  /// [B, H, N, 2D]
  torch::Tensor operator()(const LayerTensors& tensors, const AttentionOptions& options) const;
};

/// "fused" first, plain attention last. On a GPU each route of torch's attention comes once with
/// each kind of kernels; not every kind takes every shape.
const std::vector<Route>& routes(bool on_gpu);

/// For packed documents: "fused" first; torch's attention for each document, for a batch padded to
/// the longest, and on a GPU with torch's own kernels for packed documents. All are causal.
const std::vector<Route>& packed_routes(bool on_gpu);

/// `route` once for each kind of kernels, which its name then tells.
std::vector<Route> with_each_kernels(const Route& route);

/// The fused operator for new queries against a cache, `diffattn::decode`: [B, H, M, 2D].
torch::Tensor fused_decode(const LayerTensors& tensors);

}  // namespace diffattn::app
