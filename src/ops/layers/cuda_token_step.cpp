// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/token_step.h"

namespace diffattn::ops {
namespace {

using cuda::token::Graph;

std::shared_ptr<void> capture(TokenStep::Stream stream, std::function<void()> enqueue) {
  return std::make_shared<Graph>(stream, enqueue);
}

void launch(const std::shared_ptr<void>& graph, TokenStep::Stream stream) {
  static_cast<const Graph*>(graph.get())->launch(stream);
}

}  // namespace

const TokenStep* cuda_token_step() {
  static const TokenStep kernels{.embed = cuda::token::embed,
                                 .project = cuda::token::project,
                                 .takes_attend = cuda::token::takes_attend,
                                 .attend_workspace_bytes = cuda::token::attend_workspace_bytes,
                                 .attend = cuda::token::attend,
                                 .add = cuda::token::add,
                                 .gate = cuda::token::gate,
                                 .poly_gate = nullptr,
                                 .logits = cuda::token::logits,
                                 .sample = cuda::token::sample,
                                 .capture = capture,
                                 .launch = launch};
  return &kernels;
}

}  // namespace diffattn::ops
