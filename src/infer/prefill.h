// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "diffattn/nn/decoder.h"
#include "infer/paged_cache.h"
#include "infer/step_model.h"

namespace diffattn::infer {

/// A prompt whose keys and values go to `pages`. The first `cached` tokens are there already.
struct PrefillRow {
  const std::vector<int64_t>* prompt = nullptr;
  std::vector<int32_t> pages = {};
  int64_t cached = 0;
};

/// Computes all tokens of the prompts but the last, which the first step computes, with the
/// modules.
void prefill(nn::CausalLMImpl& model, const StepModel& step, PagedCache& cache,
             const std::vector<PrefillRow>& rows);

}  // namespace diffattn::infer
