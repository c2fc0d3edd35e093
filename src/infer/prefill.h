// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "diffattn/nn/decoder.h"
#include "infer/paged_cache.h"
#include "infer/step_model.h"

namespace diffattn::infer {

/// Tokens [cached, end) of a prompt, whose keys and values go to `pages`. Those of the tokens
/// before are there already.
struct PrefillRow {
  const std::vector<int64_t>* prompt = nullptr;
  std::vector<int32_t> pages = {};
  int64_t cached = 0, end = 0;
};

/// Computes keys and values of prompts with the modules.
void prefill(nn::CausalLMImpl& model, const StepModel& step, PagedCache& cache,
             const std::vector<PrefillRow>& rows);

}  // namespace diffattn::infer
