// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/golden.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "diffattn/io/safetensors.h"

namespace diffattn::testing {
namespace {

namespace fs = std::filesystem;

torch::Tensor to_tensor(const io::TensorSource& source, const std::string& name) {
  const io::TensorInfo& info = source.at(name);
  const bool integers = info.dtype == io::Dtype::kI64;
  if (!integers && info.dtype != io::Dtype::kF32) {
    throw std::runtime_error(source.name() + ": tensor '" + name + "': expected F32 or I64, got " +
                             std::string(io::dtype_name(info.dtype)));
  }
  const auto tensor = torch::empty(info.shape, integers ? torch::kLong : torch::kFloat32);
  const auto bytes = source.read_bytes(name);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

GoldenKind kind_of(const std::string& path) {
  const auto reader = io::SafetensorsReader::open(path);
  const auto& metadata = reader.metadata();
  const auto has = [&](const char* name) { return reader.find(name) != nullptr; };
  if (has("x") && has("g") && has("out")) {
    if (metadata.contains("baseline_num_heads")) return GoldenKind::kSdpa;
    if (has("param.lambda_proj.weight")) return GoldenKind::kMicrosoftV2;
    if (has("param.lambda_q1")) return GoldenKind::kMicrosoftV1;
  }
  throw std::runtime_error(path + ": expected a recording of a known kind");
}

}  // namespace

GoldenFile read_golden(const std::string& path) {
  const auto reader = io::SafetensorsReader::open(path);
  GoldenFile file{path, {reader.metadata().begin(), reader.metadata().end()}, {}};
  for (const std::string& name : reader.names()) file.tensors[name] = to_tensor(reader, name);
  return file;
}

std::vector<Golden> find_goldens() {
  const char* given = std::getenv("DIFFATTN_GOLDEN_DIR");
  const fs::path root = given != nullptr && *given != '\0' ? given : DIFFATTN_TEST_DATA "/golden";
  std::vector<Golden> found;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".safetensors") continue;
    const fs::path folder = entry.path().parent_path();
    if (!fs::exists(folder / "config.json")) {
      found.push_back({kind_of(entry.path()), entry.path()});
    } else if (entry.path().filename() == "io.safetensors") {
      found.push_back({GoldenKind::kDiffLlama, folder});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Golden& a, const Golden& b) { return a.path < b.path; });
  if (found.empty())
    throw std::runtime_error(root.string() + ": expected recordings (*.safetensors), found none");
  return found;
}

}  // namespace diffattn::testing
