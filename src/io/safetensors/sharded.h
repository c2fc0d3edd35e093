// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "diffattn/io/safetensors.h"

namespace diffattn::io {

inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kModelIndexFile[] = "model.safetensors.index.json";
inline constexpr uint64_t kMaxIndexBytes = uint64_t{32} << 20;
inline constexpr size_t kMaxShards = 4096;

/// True for valid shard names: [A-Za-z0-9._-]+, at most 255 bytes, neither "." nor "..".
bool is_shard_name(std::string_view name) noexcept;

/// The weights of a model, in one file or in several with an index.
class ShardedReader final : public TensorSource {
 public:
  /// path is a model folder, an index file (`*.index.json`) or a single .safetensors file. Like
  /// transformers, this prefers `model.safetensors` in a folder to the index.
  ///
  /// The index is untrusted. Shards are opened by bare name inside the index's folder. Every tensor
  /// in `weight_map` must exist in its shard. Tensors of a shard that the index does not list are
  /// not visible.
  ///
  /// Every file may be a symbolic link to a regular file, as in download caches, unless `symlinks`
  /// refuses links.
  static ShardedReader open(const std::string& path, Symlinks symlinks = Symlinks::kFollow);

  const std::string& name() const noexcept override { return name_; }
  /// The metadata of the single file, or of the first shard by name.
  const Metadata& metadata() const noexcept override;
  std::vector<std::string> names() const override;
  const TensorInfo* find(std::string_view name) const noexcept override;
  void read(const TensorInfo& info, std::span<std::byte> out) const override;

  size_t shard_count() const noexcept { return shards_.size(); }

 private:
  struct Place {
    std::string_view name;  // points into *info
    const TensorInfo* info;
    size_t shard;
  };

  ShardedReader() = default;
  static ShardedReader open_single(File file);
  static ShardedReader open_index(const Directory& directory, const std::string& index_name,
                                  Symlinks symlinks);
  void add_shard(File file);
  void finish();
  const Place* locate(std::string_view name) const noexcept;

  std::string name_;
  std::vector<std::unique_ptr<SafetensorsReader>> shards_;
  std::vector<Place> places_;  // sorted by name
};

/// Writes the weights of a model into a folder, in files of at most max_shard_bytes.
///
/// A single shard is `model.safetensors`; several are `model-00001-of-0000N.safetensors` and an
/// index, which is written last. commit() then removes an older `model.safetensors` or index of the
/// other kind, so a folder never has two models. Each file is replaced atomically, but not the set
/// of files: for that, write into a new folder and rename it.
class ShardedWriter {
 public:
  /// folder must exist. A tensor larger than max_shard_bytes gets its own shard.
  ShardedWriter(const std::string& folder, std::vector<TensorSpec> tensors,
                uint64_t max_shard_bytes, const Metadata& metadata = {});

  /// Like the members of SafetensorsWriter with these names.
  void write(std::string_view name, std::span<const std::byte> data);
  void append(std::string_view name, std::span<const std::byte> data);
  void commit();

  /// Bare names of the shards, in order.
  const std::vector<std::string>& files() const noexcept { return files_; }

 private:
  SafetensorsWriter& writer_of(std::string_view name);

  Directory directory_;
  std::vector<std::string> files_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  std::unordered_map<std::string, size_t> shard_of_;
  uint64_t total_bytes_ = 0;
};

}  // namespace diffattn::io
