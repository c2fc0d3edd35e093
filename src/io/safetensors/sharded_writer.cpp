// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "diffattn/io/error.h"
#include "io/checked.h"
#include "io/safetensors/sharded.h"

namespace diffattn::io {
namespace {

std::string shard_file_name(size_t index, size_t count) {
  if (count == 1) return kModelFile;
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

void remove_if_there(const Directory& directory, const char* name) {
  if (::unlinkat(directory.fd(), name, 0) != 0 && errno != ENOENT) {
    throw Error(directory.join(name),
                "cannot remove the older model: " + std::generic_category().message(errno));
  }
}

}  // namespace

ShardedWriter::ShardedWriter(const std::string& folder, std::vector<TensorSpec> tensors,
                             uint64_t max_shard_bytes, const Metadata& metadata)
    : directory_(Directory::open(folder)) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  std::vector<std::vector<TensorSpec>> shards(1);
  uint64_t filled = 0;
  for (TensorSpec& spec : tensors) {
    const uint64_t bytes = tensor_bytes(spec, folder);
    const auto total = checked_add(total_bytes_, bytes);
    if (!total) throw Error(folder, "expected less than 2^64 bytes of tensors, got more");
    total_bytes_ = *total;
    const auto grown = checked_add(filled, bytes);
    if (!shards.back().empty() && (!grown || *grown > max_shard_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;  // cannot overflow: at most total_bytes_
    if (!shard_of_.emplace(spec.name, shards.size() - 1).second) {
      throw Error(folder, "expected unique names, got " + in_quotes(spec.name) + " twice");
    }
    shards.back().push_back(std::move(spec));
  }
  if (shards.size() > kMaxShards) {
    throw Error(folder, "expected at most " + std::to_string(kMaxShards) + " shards, got " +
                            std::to_string(shards.size()) + "; allow larger shards");
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    files_.push_back(shard_file_name(i, shards.size()));
    writers_.push_back(std::make_unique<SafetensorsWriter>(directory_.join(files_.back()),
                                                           std::move(shards[i]), metadata));
  }
}

SafetensorsWriter& ShardedWriter::writer_of(std::string_view name) {
  const auto found = shard_of_.find(std::string(name));
  if (found == shard_of_.end()) {
    throw Error(directory_.path(), "expected a declared tensor, got " + in_quotes(name));
  }
  return *writers_[found->second];
}

void ShardedWriter::write(std::string_view name, std::span<const std::byte> data) {
  writer_of(name).write(name, data);
}

void ShardedWriter::append(std::string_view name, std::span<const std::byte> data) {
  writer_of(name).append(name, data);
}

void ShardedWriter::commit() {
  for (const auto& writer : writers_) writer->commit();
  if (files_.size() == 1) {
    remove_if_there(directory_, kModelIndexFile);
    return;
  }
  nlohmann::json weight_map = nlohmann::json::object();
  for (const auto& [tensor, shard] : shard_of_) weight_map[tensor] = files_[shard];
  nlohmann::json index = {{"metadata", {{"total_size", total_bytes_}}}};
  index["weight_map"] = std::move(weight_map);
  write_text(directory_.join(kModelIndexFile), index.dump(2) + "\n");
  remove_if_there(directory_, kModelFile);
}

}  // namespace diffattn::io
