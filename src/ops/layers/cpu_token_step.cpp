// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <utility>

#include "diffattn/kernels/backend.h"
#include "ops/dispatch/backend_choice.h"
#include "ops/layers/float_product.h"
#include "ops/layers/token_step.h"

namespace diffattn::ops {
namespace {

namespace token = cpu::token;

bool takes_host_attend(Dtype dtype, int64_t, int64_t) {
  return backend_limit() != kComposed && (dtype == Dtype::kFloat32 || dtype == Dtype::kBFloat16);
}

size_t no_workspace(const ForwardParams&) { return 0; }

void attend_on_host(const ForwardParams& params, void*, TokenStep::Stream) {
  cpu_backend_or_composed(params)->forward(params);
}

std::shared_ptr<void> keep(TokenStep::Stream, std::function<void()> enqueue) {
  return std::make_shared<std::function<void()>>(std::move(enqueue));
}

void run(const std::shared_ptr<void>& work, TokenStep::Stream) {
  (*static_cast<const std::function<void()>*>(work.get()))();
}

/// Products by torch, whose blocked kernels are faster for many rows.
void many_rows(const cpu::FewRows& p) {
  const auto type = p.dtype == Dtype::kBFloat16 ? torch::kBFloat16 : torch::kFloat32;
  const auto floats = torch::TensorOptions().dtype(torch::kFloat32);
  const auto tensor = [](const void* data, torch::IntArrayRef sizes, const auto& options) {
    return torch::from_blob(const_cast<void*>(data), sizes, options);
  };
  const torch::Tensor x = tensor(p.x, {p.rows, p.width}, floats).to(type);
  for (const cpu::FewRowsMatrix& m : p.matrices) {
    torch::Tensor bias;
    if (m.bias != nullptr) bias = tensor(m.bias, {m.outputs}, floats.dtype(type));
    const torch::Tensor y = tensor(m.y, {p.rows, m.outputs}, floats);
    const torch::Tensor product =
        torch::linear(x, tensor(m.weight, {m.outputs, p.width}, floats.dtype(type)), bias);
    if (m.add == nullptr) {
      y.copy_(product);
    } else {
      torch::add_out(const_cast<torch::Tensor&>(y), tensor(m.add, {p.rows, m.outputs}, floats),
                     product);
    }
  }
}

token::Products products_for(const token::Batch& batch) {
  constexpr int kFew = 16;  // up to here reading the weights limits the time
  const auto type = batch.dtype == Dtype::kBFloat16 ? torch::kBFloat16 : torch::kFloat32;
  return batch.rows <= few_rows_limit(type, kFew) ? cpu::few_rows : many_rows;
}

constexpr TokenStep kOnHost{
    .embed = [](const token::Batch& batch, const void* embedding, const token::Norm& next,
                const token::Residual& residual,
                token::Stream) { token::embed(batch, embedding, next, residual); },
    .project =
        [](const token::Batch& batch, const token::Residual& residual, float,
           const token::Projection& projection, const token::Cache& cache, token::Stream) {
          token::project(batch, residual, projection, cache, products_for(batch));
        },
    .takes_attend = takes_host_attend,
    .attend_workspace_bytes = no_workspace,
    .attend = attend_on_host,
    .add =
        [](const token::Batch& batch, const void* input, int in, const token::Matrix& matrix,
           const token::Norm& next, const token::Residual& residual, token::Stream) {
          token::add(batch, input, in, matrix, next, residual, products_for(batch));
        },
    .gate = [](const token::Batch& batch, const token::Residual& residual, float,
               const token::Matrix& gate, const token::Matrix& up, void* out,
               token::Stream) { token::gate(batch, residual, gate, up, out, products_for(batch)); },
    .poly_gate =
        [](const token::Batch& batch, const token::Residual& residual, float,
           const token::Matrix& gate, const token::Matrix& up, const token::PolyNorm& norm,
           void* out, token::Stream) {
          token::poly_gate(batch, residual, gate, up, norm, out, products_for(batch));
        },
    .logits = [](const token::Batch& batch, const token::Residual& residual, float,
                 const token::Matrix& head, float* out,
                 token::Stream) { token::logits(batch, residual, head, out, products_for(batch)); },
    .sample = [](const token::Batch& batch, const token::Sampling& sampling,
                 token::Stream) { token::sample(batch, sampling); },
    .capture = keep,
    .launch = run};

}  // namespace

const TokenStep* cpu_token_step() { return &kOnHost; }

}  // namespace diffattn::ops
