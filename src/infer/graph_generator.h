// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "diffattn/infer/generator.h"
#include "infer/paged_cache.h"
#include "infer/step_buffers.h"
#include "infer/step_model.h"

namespace diffattn::infer {

/// Generates with one graph launch per token. The general model computes the prompts.
class GraphGenerator {
 public:
  using Rows = std::vector<std::vector<int64_t>>;

  GraphGenerator(nn::CausalLM model, StepModel step, const GeneratorOptions& options);

  Rows generate(const Rows& prompts, const nn::SamplingOptions& options,
                const nn::OnToken& on_token);

 private:
  /// The prompts that one batch continues. `first` is the number of the first among all prompts.
  struct Work {
    const Rows& prompts;
    const nn::SamplingOptions& options;
    size_t first;
    std::vector<std::vector<int32_t>> pages;  // of each prompt
  };
  struct CapturedStep {
    torch::Tensor workspace;
    std::shared_ptr<void> graph;
  };

  Rows run(const Rows& prompts, const nn::SamplingOptions& options, const nn::OnToken& on_token,
           size_t first);
  void reserve(const Rows& prompts, int64_t new_tokens);
  void prefill(const Work& work);
  void write_state(const Work& work);
  void write_counts(const Work& work);
  Rows decode(const Work& work, const nn::OnToken& on_token);
  const CapturedStep& captured(int64_t rows, int64_t tokens);

  nn::CausalLM model_;
  StepModel step_;
  GeneratorOptions options_;
  PagedCache cache_;
  std::unique_ptr<StepBuffers> buffers_;
  c10::Stream stream_;
  std::map<std::pair<int64_t, int64_t>, CapturedStep> steps_;  // by rows and capacity
};

}  // namespace diffattn::infer
