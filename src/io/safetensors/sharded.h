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
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{32} << 20;
inline constexpr std::size_t kMaxShards = 4096;

/// True for names a shard may have: [A-Za-z0-9._-]+, at most 255 bytes, neither "." nor "..".
bool is_shard_name(std::string_view name) noexcept;

/// A model's weights, in one file or in several with an index.
class ShardedReader final : public TensorSource {
 public:
  /// path is a model folder, an index file (`*.index.json`) or a single .safetensors file. In a
  /// folder `model.safetensors` comes first and the index second, as in transformers.
  ///
  /// The index is untrusted: a shard is opened by bare name inside the index's folder, and unless
  /// symlinks says otherwise must not be a symbolic link. Every tensor in `weight_map` must exist
  /// in its shard; tensors of a shard that the index does not map there are not visible.
  static ShardedReader open(const std::string& path, Symlinks symlinks = Symlinks::kRefuse);

  const std::string& name() const noexcept override { return name_; }
  /// Of the single file; of an index, the first shard's (by name).
  const Metadata& metadata() const noexcept override;
  std::vector<std::string> names() const override;
  const TensorInfo* find(std::string_view name) const noexcept override;
  void read(const TensorInfo& info, std::span<std::byte> out) const override;

  std::size_t shard_count() const noexcept { return shards_.size(); }

 private:
  struct Place {
    std::string_view name;  // of *info
    const TensorInfo* info;
    std::size_t shard;
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

/// Writes a model's weights into a folder, in as many files as max_shard_bytes asks for.
///
/// One shard becomes `model.safetensors`; several become `model-00001-of-0000N.safetensors` and
/// an index, which is written last. commit() then removes the other kind's entry file, so that a
/// folder never offers two models. Each file is replaced atomically, the set of them is not: for
/// that, write into a new folder and rename it.
class ShardedWriter {
 public:
  /// folder must exist. A tensor larger than max_shard_bytes gets a shard of its own.
  ShardedWriter(const std::string& folder, std::vector<TensorSpec> tensors,
                std::uint64_t max_shard_bytes, const Metadata& metadata = {});

  /// As those of SafetensorsWriter.
  void write(std::string_view name, std::span<const std::byte> data);
  void append(std::string_view name, std::span<const std::byte> data);
  void commit();

  /// Bare names of the files with tensors, in order.
  const std::vector<std::string>& files() const noexcept { return files_; }

 private:
  SafetensorsWriter& writer_of(std::string_view name);

  Directory directory_;
  std::vector<std::string> files_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  std::unordered_map<std::string, std::size_t> shard_of_;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace diffattn::io
