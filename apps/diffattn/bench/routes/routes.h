// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "diffattn/nn/route.h"

// The fused operator and the other ways to compute differential attention with torch.

namespace diffattn::app {

/// Tensors of one layer in the layout of torch's attention.
struct LayerTensors {
  torch::Tensor q1, q2, k1, k2;  // [B, H, N, D]
  torch::Tensor v;               // [B, H, N, 2D]
  torch::Tensor lambda;          // scalar, or [B, N, H]

  std::vector<int64_t> lengths = {};  // of packed documents, with B = 1; empty: not packed

  std::vector<torch::Tensor> leaves() const { return {q1, q2, k1, k2, v, lambda}; }
};

/// Returns random tensors that require gradients. With `lambda_per_token` lambda is [B, N, H].
LayerTensors random_layer(int64_t batch, int64_t heads, int64_t seq, int64_t head_dim,
                          torch::TensorOptions options, bool lambda_per_token = false);

/// Kernels of torch's scaled_dot_product_attention; kAny leaves the choice to torch.
enum class SdpaKernels { kAny, kCudnn, kFlash, kMemoryEfficient };

/// Restricts torch's attention to one kind of kernels during its lifetime. Calls that these kernels
/// do not support throw.
class ForcedKernels {
 public:
  explicit ForcedKernels(SdpaKernels kernels);
  ~ForcedKernels();
  ForcedKernels(const ForcedKernels&) = delete;
  ForcedKernels& operator=(const ForcedKernels&) = delete;

 private:
  std::vector<bool> before_;
};

/// One way to compute the attention of a layer.
struct BenchRoute {
  std::string name;
  bool plain = false;  // softmax attention of equal width: another function, for comparison
  SdpaKernels kernels = SdpaKernels::kAny;
  std::function<torch::Tensor(const LayerTensors&, const AttentionOptions&)> compute;

  /// Returns [B, H, N, 2D].
  torch::Tensor operator()(const LayerTensors& tensors, const AttentionOptions& options) const;
};

/// Returns all routes: "fused" first, plain attention last. On a GPU each route that calls torch's
/// attention comes once with each kind of kernels; not every kind supports every shape.
const std::vector<BenchRoute>& bench_routes(bool on_gpu);

/// Returns the routes for packed causal documents: "fused" first, then torch's attention for each
/// document and for a batch padded to the longest document. On a GPU torch's own kernels for packed
/// documents follow.
const std::vector<BenchRoute>& packed_routes(bool on_gpu);

/// Returns `route` once for each kind of kernels, with the kind added to its name.
std::vector<BenchRoute> with_each_kernels(const BenchRoute& route);

/// Calls `diffattn::decode`, the fused operator for new queries against a KV cache. Returns
/// [B, H, M, 2D].
torch::Tensor fused_decode(const LayerTensors& tensors);

}  // namespace diffattn::app
