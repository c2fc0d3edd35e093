// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "diffattn/kernels/backend.h"
#include "ops/dispatch/backend_choice.h"
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

constexpr TokenStep kOnHost{
    .embed = [](const token::Batch& batch, const void* embedding, const token::Norm& next,
                const token::Residual& residual,
                token::Stream) { token::embed(batch, embedding, next, residual); },
    .project = [](const token::Batch& batch, const token::Residual& residual, float,
                  const token::Projection& projection, const token::Cache& cache,
                  token::Stream) { token::project(batch, residual, projection, cache); },
    .takes_attend = takes_host_attend,
    .attend_workspace_bytes = no_workspace,
    .attend = attend_on_host,
    .add = [](const token::Batch& batch, const void* input, int in, const token::Matrix& matrix,
              const token::Norm& next, const token::Residual& residual,
              token::Stream) { token::add(batch, input, in, matrix, next, residual); },
    .gate = [](const token::Batch& batch, const token::Residual& residual, float,
               const token::Matrix& gate, const token::Matrix& up, void* out,
               token::Stream) { token::gate(batch, residual, gate, up, out); },
    .logits = [](const token::Batch& batch, const token::Residual& residual, float,
                 const token::Matrix& head, float* out,
                 token::Stream) { token::logits(batch, residual, head, out); },
    .sample = [](const token::Batch& batch, const token::Sampling& sampling,
                 token::Stream) { token::sample(batch, sampling); },
    .capture = keep,
    .launch = run};

}  // namespace

const TokenStep* cpu_token_step() { return &kOnHost; }

}  // namespace diffattn::ops
