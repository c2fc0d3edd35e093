// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/json.h"
#include "io/safetensors/rules.h"
#include "io/safetensors/sharded.h"

namespace diffattn::io {
namespace {

constexpr std::string_view kIndexSuffix = ".index.json";
constexpr size_t kMaxFileNameBytes = 255;
constexpr size_t kIndexDepth = 8;

/// Maps a shard name to the names of its tensors, both sorted.
using ShardMap = std::map<std::string, std::vector<std::string>>;

ShardMap shard_map_of(const JsonValue& index) {
  if (const auto metadata = index.find("metadata")) {
    // Published files write total_size as 1234 or 1234.0. It is only a hint for progress bars; the
    // shards have the exact sizes.
    if (const auto total = metadata->find("total_size")) total->to_double(0.0, 0x1p63);
  }
  const JsonValue weight_map = index.at("weight_map");
  if (!weight_map.is_object() || weight_map.size() == 0) {
    weight_map.fail("an object that maps tensor names to shards");
  }
  if (weight_map.size() > kMaxTensors) {
    weight_map.fail("at most " + std::to_string(kMaxTensors) + " tensors");
  }
  ShardMap shards;
  const auto& members = weight_map.raw().get_ref<const nlohmann::json::object_t&>();
  for (const auto& [tensor, node] : members) {
    const std::string* shard = node.get_ptr<const std::string*>();
    if (shard == nullptr) weight_map.at(tensor).fail("the name of a shard");
    if (!is_shard_name(*shard)) {
      weight_map.at(tensor).fail("a shard name of letters, digits, '.', '_' and '-'");
    }
    if (const auto fault = name_fault(tensor)) throw Error(index.file(), "weight_map: " + *fault);
    shards[*shard].push_back(tensor);
    if (shards.size() > kMaxShards) {
      weight_map.fail("at most " + std::to_string(kMaxShards) + " shards");
    }
  }
  return shards;
}

}  // namespace

bool is_shard_name(std::string_view name) noexcept {
  if (name.empty() || name.size() > kMaxFileNameBytes || name == "." || name == "..") return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

ShardedReader ShardedReader::open(const std::string& path, Symlinks symlinks) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const Directory directory = Directory::open(path);
    if (directory.contains(kModelFile)) {
      return open_single(File::open_in(directory, kModelFile, symlinks));
    }
    if (directory.contains(kModelIndexFile)) {
      return open_index(directory, kModelIndexFile, symlinks);
    }
    throw Error(path, std::string("expected ") + kModelFile + " or " + kModelIndexFile +
                          " in the folder, got neither");
  }
  if (path.size() > kIndexSuffix.size() && path.ends_with(kIndexSuffix)) {
    const std::filesystem::path split(path);
    const std::string parent = split.parent_path().string();
    return open_index(Directory::open(parent.empty() ? "." : parent), split.filename().string(),
                      symlinks);
  }
  return open_single(File::open(path, symlinks));
}

ShardedReader ShardedReader::open_single(File file) {
  ShardedReader reader;
  reader.name_ = file.name();
  reader.add_shard(std::move(file));
  for (const TensorInfo& info : reader.shards_.front()->header().tensors()) {
    reader.places_.push_back({info.name, &info, 0});
  }
  reader.finish();
  return reader;
}

ShardedReader ShardedReader::open_index(const Directory& directory, const std::string& index_name,
                                        Symlinks symlinks) {
  ShardedReader reader;
  reader.name_ = directory.join(index_name);
  const File index_file = File::open_in(directory, index_name, symlinks);
  JsonLimits limits;
  limits.max_depth = kIndexDepth;
  const nlohmann::json document =
      parse_json(read_text(index_file, kMaxIndexBytes), reader.name_, limits);
  for (const auto& [shard, tensors] : shard_map_of(JsonValue(document, reader.name_))) {
    reader.add_shard(File::open_in(directory, shard, symlinks));
    const SafetensorsReader& opened = *reader.shards_.back();
    for (const std::string& tensor : tensors) {
      const TensorInfo* info = opened.find(tensor);
      if (info == nullptr) {
        throw Error(reader.name_, "weight_map: expected tensor " + in_quotes(tensor) + " in " +
                                      shard + ", got none there");
      }
      reader.places_.push_back({info->name, info, reader.shards_.size() - 1});
    }
  }
  reader.finish();
  return reader;
}

void ShardedReader::add_shard(File file) {
  // unique_ptr keeps the address of each shard: places_ points into it.
  shards_.push_back(std::make_unique<SafetensorsReader>(std::move(file)));
}

void ShardedReader::finish() {
  std::sort(places_.begin(), places_.end(),
            [](const Place& a, const Place& b) { return a.name < b.name; });
}

const Metadata& ShardedReader::metadata() const noexcept { return shards_.front()->metadata(); }

std::vector<std::string> ShardedReader::names() const {
  std::vector<const Place*> order;
  order.reserve(places_.size());
  for (const Place& place : places_) order.push_back(&place);
  // The TensorInfo objects of a shard are in one array, ordered by offset.
  std::sort(order.begin(), order.end(), [](const Place* a, const Place* b) {
    return a->shard != b->shard ? a->shard < b->shard : a->info < b->info;
  });
  std::vector<std::string> names;
  names.reserve(order.size());
  for (const Place* place : order) names.emplace_back(place->name);
  return names;
}

const ShardedReader::Place* ShardedReader::locate(std::string_view name) const noexcept {
  const auto found = std::lower_bound(
      places_.begin(), places_.end(), name,
      [](const Place& place, std::string_view wanted) { return place.name < wanted; });
  return found == places_.end() || found->name != name ? nullptr : &*found;
}

const TensorInfo* ShardedReader::find(std::string_view name) const noexcept {
  const Place* place = locate(name);
  return place == nullptr ? nullptr : place->info;
}

void ShardedReader::read(const TensorInfo& info, std::span<std::byte> out) const {
  const Place* place = locate(info.name);
  if (place == nullptr) {
    throw Error(name_, "expected a tensor named " + in_quotes(info.name) + ", got none");
  }
  shards_[place->shard]->read(*place->info, out);
}

}  // namespace diffattn::io
