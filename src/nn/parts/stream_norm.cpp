// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/stream_norm.h"

#include "nn/parts/residual_stream.h"

namespace diffattn::nn {

torch::Tensor StreamNorm::of(ResidualStream& stream) {
  if (auto* rms = std::get_if<RMSNorm>(&norm_)) return stream.normed(*rms);
  return stream.for_products(std::get<torch::nn::LayerNorm>(norm_)->forward(stream.value()));
}

torch::Tensor StreamNorm::in_full(ResidualStream& stream) {
  if (auto* rms = std::get_if<RMSNorm>(&norm_)) return stream.normed_in_full(*rms);
  return std::get<torch::nn::LayerNorm>(norm_)->forward(stream.value());
}

std::shared_ptr<torch::nn::Module> StreamNorm::module() const {
  return std::visit(
      [](const auto& norm) -> std::shared_ptr<torch::nn::Module> { return norm.ptr(); }, norm_);
}

RMSNorm StreamNorm::rms() const {
  const auto* rms = std::get_if<RMSNorm>(&norm_);
  return rms != nullptr ? *rms : RMSNorm(nullptr);
}

}  // namespace diffattn::nn
