// SPDX-License-Identifier: Apache-2.0
#include "diffattn/infer/generator.h"

#include <optional>
#include <utility>

#include "infer/graph_generator.h"
#include "nn/models/prompts.h"

namespace diffattn::infer {

struct Generator::Parts {
  nn::CausalLM model;
  std::string reason;  // why there are no graphs
  std::optional<GraphGenerator> graphs;
};

Generator::Generator(nn::CausalLM model, const GeneratorOptions& options)
    : parts_(std::make_unique<Parts>(Parts{std::move(model), {}, std::nullopt})) {
  if (options.max_rows() < 1 || options.max_rows() > cuda::token::kMaxRows) {
    throw_argument_error("max_rows", c10::str("1 to ", cuda::token::kMaxRows),
                         std::to_string(options.max_rows()));
  }
  const torch::NoGradGuard no_gradients;
  auto step = StepModel::make(*parts_->model, parts_->reason);
  if (step) parts_->graphs.emplace(parts_->model, std::move(*step), options);
}

Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

std::vector<std::vector<int64_t>> Generator::generate(
    const std::vector<std::vector<int64_t>>& prompts, const nn::SamplingOptions& options,
    const nn::OnToken& on_token) {
  if (!parts_->graphs) return nn::generate(*parts_->model, prompts, options, on_token);
  nn::check_generation(*parts_->model, prompts, options);
  if (options.max_new_tokens() == 0) return std::vector<std::vector<int64_t>>(prompts.size());
  return parts_->graphs->generate(prompts, options, on_token);
}

bool Generator::uses_graphs() const { return parts_->graphs.has_value(); }
const std::string& Generator::reason() const { return parts_->reason; }

}  // namespace diffattn::infer
