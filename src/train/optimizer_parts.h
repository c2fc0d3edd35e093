// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/io/safetensors.h"

namespace diffattn::train {

/// The optimiser's state in a checkpoint of several processes. Each has written pieces of the
/// flattened tensors; in the order of the ranks they make up the whole.
class OptimizerParts {
 public:
  /// Opens the files of all ranks, in their order. Throws io::Error.
  explicit OptimizerParts(const std::vector<std::string>& paths);

  /// Returns a flat tensor of `count` elements. Throws io::Error if the pieces are missing or have
  /// another number of elements.
  torch::Tensor read(const std::string& name, int64_t count) const;

 private:
  std::vector<io::SafetensorsReader> files_;
};

}  // namespace diffattn::train
