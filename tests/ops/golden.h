// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

/// Recorded outputs of other implementations, from tests/fixtures/golden or the folder in
/// DIFFATTN_GOLDEN_DIR. Metadata and tensor names tell the kind of a file, its name does not.
namespace diffattn::testing {

using Tensors = std::map<std::string, torch::Tensor>;

struct GoldenFile {
  std::string path;
  std::map<std::string, std::string> metadata;
  Tensors tensors;

  int64_t number(const std::string& key) const { return std::stoll(metadata.at(key)); }
  bool has(const std::string& name) const { return tensors.contains(name); }
};

GoldenFile read_golden(const std::string& path);

/// The implementation that a recording comes from.
enum class GoldenKind { kMicrosoftV1, kMicrosoftV2, kSdpa, kDiffLlama };

/// One recording: a file, or a model folder with its io.safetensors.
struct Golden {
  GoldenKind kind;
  std::string path;
};

/// Returns every recording in the golden folder. Throws for a safetensors file of unknown kind.
std::vector<Golden> find_goldens();

}  // namespace diffattn::testing
