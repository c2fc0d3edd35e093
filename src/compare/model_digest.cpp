// SPDX-License-Identifier: Apache-2.0
#include "compare/model_digest.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "diffattn/io/file.h"
#include "io/hash.h"
#include "io/safetensors/sharded.h"

namespace diffattn::compare {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;

}  // namespace

std::string model_digest(const std::string& folder) {
  io::Hash64 hash;
  hash.update(io::read_text(folder + "/config.json", kMaxConfigBytes));
  const auto weights = io::ShardedReader::open(folder);
  std::vector<std::string> names = weights.names();
  std::ranges::sort(names);
  for (const std::string& name : names) {
    const io::TensorInfo& info = weights.at(name);
    hash.update(fmt::format("\n{} {} {}\n", name, static_cast<int>(info.dtype),
                            io::shape_text(info.shape)));
    hash.update(weights.read_bytes(name));
  }
  return fmt::format("{:016x}", hash.digest());
}

}  // namespace diffattn::compare
