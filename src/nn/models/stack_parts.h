// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "diffattn/nn/model_config.h"
#include "diffattn/nn/stack.h"

namespace diffattn::nn {

/// The layers of a stack and its final norm.
struct StackParts {
  std::vector<std::shared_ptr<StackLayer>> layers = {};
  std::string norm_name = "norm";
  StreamNorm norm = {};
};

/// Makes the parts of a stack for the family of the model. Throws diffattn::Error if sizes
/// contradict each other, or if a family other than Llama's should be anything but a causal
/// decoder.
StackParts make_stack_parts(const ModelConfig& config, const StackOptions& options);

/// Makes the parts of a published decoder from the list of its layer kinds.
StackParts make_published_parts(const ModelConfig& config);

}  // namespace diffattn::nn
