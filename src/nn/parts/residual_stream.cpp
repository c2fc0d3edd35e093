// SPDX-License-Identifier: Apache-2.0
#include "nn/parts/residual_stream.h"

#include <ATen/autocast_mode.h>

#include "ops/layers/add_rms_norm.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

/// Returns the type in which products read x.
torch::ScalarType product_type(const Tensor& x) {
  const auto device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device) || x.scalar_type() == torch::kFloat64) {
    return x.scalar_type();
  }
  return at::autocast::get_autocast_dtype(device);
}

}  // namespace

void ResidualStream::add(const Tensor& branch) {
  value();
  pending_ = branch;
  if (!sum_.is_cuda()) value();
}

const Tensor& ResidualStream::value() {
  if (pending_.defined()) {
    sum_ = sum_ + pending_;
    pending_ = Tensor();
  }
  return sum_;
}

std::optional<Tensor> ResidualStream::fused(const RMSNorm& norm, torch::ScalarType type) {
  if (!takes_add_rms_norm(sum_, pending_, norm->weight, type)) return std::nullopt;
  const NormedSum result = add_rms_norm(sum_, pending_, norm->weight, norm->options.eps(), type);
  sum_ = result.sum;
  pending_ = Tensor();
  return result.norm;
}

Tensor ResidualStream::normed(RMSNorm& norm) {
  if (const auto y = fused(norm, product_type(sum_))) return *y;
  return for_products(norm(value()));
}

Tensor ResidualStream::for_products(const Tensor& norm) const {
  // One cast here saves one for each projection that reads the norm.
  const bool casts = at::autocast::is_autocast_enabled(norm.device().type());
  return casts ? norm.to(product_type(norm)) : norm;
}

Tensor ResidualStream::normed_in_full(RMSNorm& norm) {
  if (const auto y = fused(norm, sum_.scalar_type())) return *y;
  return norm(value());
}

}  // namespace diffattn::nn
