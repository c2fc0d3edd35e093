// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

/// Recorded outputs of other implementations: tests/fixtures/golden, or the folder that
/// DIFFATTN_GOLDEN_DIR names. Files are told apart by metadata and tensor names, never by file
/// name.
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

/// What a recording is of.
enum class GoldenKind { kMicrosoftV1, kMicrosoftV2, kSdpa, kDiffLlama };

/// One recording: a file, or a model folder with its io.safetensors.
struct Golden {
  GoldenKind kind;
  std::string path;
};

/// Every recording below the golden folder; throws when a safetensors file is of no known kind.
std::vector<Golden> find_goldens();

}  // namespace diffattn::testing
