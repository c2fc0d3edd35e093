// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/token_step.h"

namespace diffattn::ops {

/// The kernels of a generation step on a GPU, `kernels/token_step.h`. They are function pointers,
/// so that a build without nvcc links without them.
struct CudaTokenStep {
  using Stream = cuda::token::Stream;
  decltype(&cuda::token::embed) embed;
  decltype(&cuda::token::project) project;
  decltype(&cuda::token::takes_attend) takes_attend;
  decltype(&cuda::token::attend_workspace_bytes) attend_workspace_bytes;
  decltype(&cuda::token::attend) attend;
  decltype(&cuda::token::add) add;
  decltype(&cuda::token::gate) gate;
  decltype(&cuda::token::logits) logits;
  decltype(&cuda::token::sample) sample;
  std::shared_ptr<void> (*capture)(Stream stream, const std::function<void()>& enqueue);
  void (*launch)(const std::shared_ptr<void>& graph, Stream stream);
};

/// Returns null in a build without CUDA kernels.
const CudaTokenStep* cuda_token_step();

}  // namespace diffattn::ops
