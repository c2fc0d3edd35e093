// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "kernels/token_step.h"

namespace diffattn::ops {

/// The kernels of a generation step (kernels/token_step.h) on one kind of device, as function
/// pointers. A CPU ignores streams: its functions return when they are done.
struct TokenStep {
  using Stream = cuda::token::Stream;
  decltype(&cuda::token::embed) embed;
  decltype(&cuda::token::project) project;
  decltype(&cuda::token::takes_attend) takes_attend;
  decltype(&cuda::token::attend_workspace_bytes) attend_workspace_bytes;
  decltype(&cuda::token::attend) attend;
  decltype(&cuda::token::add) add;
  decltype(&cuda::token::gate) gate;
  /// Null if this device has no kernel for it.
  void (*poly_gate)(const token::Batch& batch, const token::Residual& residual, float eps,
                    const token::Matrix& gate, const token::Matrix& up, const token::PolyNorm& norm,
                    void* out, Stream stream);
  decltype(&cuda::token::logits) logits;
  decltype(&cuda::token::sample) sample;
  /// Keeps the work that `enqueue` puts on the stream, for `launch`. A GPU calls it now, once; a
  /// CPU calls it at every launch.
  std::shared_ptr<void> (*capture)(Stream stream, std::function<void()> enqueue);
  void (*launch)(const std::shared_ptr<void>& work, Stream stream);
};

/// Returns null in a build without CUDA kernels.
const TokenStep* cuda_token_step();
const TokenStep* cpu_token_step();

}  // namespace diffattn::ops
