// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors/sharded.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "diffattn/io/json.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::holds;
using testing::slurp;
using testing::TempFolder;

std::vector<TensorSpec> ten_tensors() {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 10; ++i) specs.push_back({"t" + std::to_string(i), Dtype::kU8, {i}});
  return specs;
}

std::string content_of(const TensorSpec& spec) {
  return std::string(static_cast<size_t>(spec.shape[0]), spec.name[1]);
}

void write_model(const std::string& folder, uint64_t max_shard_bytes) {
  ShardedWriter writer(folder, ten_tensors(), max_shard_bytes, {{"format", "pt"}});
  for (const TensorSpec& spec : ten_tensors()) writer.write(spec.name, bytes_of(content_of(spec)));
  writer.commit();
}

void expect_model(const std::string& path, size_t shards) {
  const ShardedReader reader = ShardedReader::open(path);
  EXPECT_EQ(reader.shard_count(), shards);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.names().size(), 10U);
  for (const TensorSpec& spec : ten_tensors()) {
    const std::string wanted = content_of(spec);
    const std::vector<std::byte> data = reader.read_bytes(spec.name);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(data.data()), data.size()), wanted);
    EXPECT_EQ(reader.require(spec.name, Dtype::kU8, spec.shape).bytes(), wanted.size());
  }
  EXPECT_EQ(reader.find("t10"), nullptr);
  EXPECT_THROW(reader.read_as<float>("t4"), Error);
  TensorInfo forged = reader.at("t4");
  forged.name = "x";
  EXPECT_THROW(reader.read(forged, {}), Error);
}

TEST(Sharded, RoundTripsForEveryShardSize) {
  for (uint64_t max = 0; max <= 50; ++max) {
    const TempFolder folder;
    write_model(folder.path(), max);
    const size_t shards = ShardedReader::open(folder.path()).shard_count();
    if (max >= 45) {
      EXPECT_EQ(shards, 1U);
    }
    if (max == 0) {
      EXPECT_EQ(shards, 10U);
    }
    expect_model(folder.path(), shards);
    expect_model(folder.path() + "/", shards);
    expect_model(folder / (shards == 1 ? kModelFile : kModelIndexFile), shards);
    EXPECT_EQ(folder.entries(), shards == 1 ? 1 : shards + 1);
    for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
      if (file.path().extension() != ".safetensors") continue;
      const SafetensorsReader shard = SafetensorsReader::open(file.path().string());
      const uint64_t bytes = shard.header().tensors().back().end;
      EXPECT_TRUE(bytes <= max || shard.names().size() <= 2) << file.path();
    }
  }
}

TEST(Sharded, IndexIsTheConventionalOne) {
  const TempFolder folder;
  write_model(folder.path(), 20);
  const auto index = read_json(folder / kModelIndexFile);
  EXPECT_EQ(index["metadata"]["total_size"], 45);
  EXPECT_EQ(index["weight_map"]["t0"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["t9"], "model-00003-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"].size(), 10U);
}

TEST(Sharded, NewModelReplacesTheOtherKind) {
  const TempFolder folder;
  write_model(folder.path(), 20);
  write_model(folder.path(), 100);
  EXPECT_FALSE(std::filesystem::exists(folder / kModelIndexFile));
  expect_model(folder.path(), 1);
  write_model(folder.path(), 20);
  EXPECT_FALSE(std::filesystem::exists(folder / kModelFile));
  expect_model(folder.path(), 3);
}

TEST(Sharded, NamesFollowTheDisk) {
  const TempFolder folder;
  write_model(folder.path(), 20);
  std::vector<std::string> wanted;
  for (const TensorSpec& spec : ten_tensors()) wanted.push_back(spec.name);
  EXPECT_EQ(ShardedReader::open(folder.path()).names(), wanted);
}

TEST(Sharded, MovesKeepTheirTensors) {
  const TempFolder folder;
  write_model(folder.path(), 20);
  ShardedReader first = ShardedReader::open(folder.path());
  const TensorInfo* info = first.find("t9");
  const ShardedReader second = std::move(first);
  EXPECT_EQ(second.find("t9"), info);
  EXPECT_EQ(second.read_bytes("t9").size(), 9U);
}

TEST(Sharded, UnfinishedWriterLeavesTheOldModel) {
  const TempFolder folder;
  write_model(folder.path(), 20);
  const std::string index = slurp(folder / kModelIndexFile);
  {
    ShardedWriter writer(folder.path(), ten_tensors(), 20);
    writer.write("t1", bytes_of("x"));
    EXPECT_TRUE(holds(error_of([&] { writer.commit(); }), "expected data before commit"));
    EXPECT_TRUE(holds(error_of([&] { writer.write("zz", {}); }), "declared tensor, got 'zz'"));
  }
  EXPECT_EQ(slurp(folder / kModelIndexFile), index);
  expect_model(folder.path(), 3);
  EXPECT_EQ(folder.entries(), 4U);
}

TEST(Sharded, WriterRefusesBadRequests) {
  const TempFolder folder;
  EXPECT_THROW(ShardedWriter(folder / "none", ten_tensors(), 20), Error);
  const TensorSpec a{"a", Dtype::kU8, {1}};
  EXPECT_TRUE(holds(error_of([&] { ShardedWriter(folder.path(), {a, a}, 20); }), "'a' twice"));
  std::vector<TensorSpec> many;
  for (size_t i = 0; i <= kMaxShards; ++i) many.push_back({std::to_string(i), Dtype::kU8, {1}});
  EXPECT_TRUE(
      holds(error_of([&] { ShardedWriter(folder.path(), many, 1); }), "at most 4096 shards"));
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(Sharded, ATensorLargerThanAShardHasNoEmptyShardBeforeIt) {
  const TempFolder folder;
  ShardedWriter writer(folder.path(), {{"a", Dtype::kU8, {9}}, {"b", Dtype::kU8, {1}}}, 4);
  writer.write("a", bytes_of("123456789"));
  writer.write("b", bytes_of("1"));
  writer.commit();
  EXPECT_EQ(ShardedReader::open(folder.path()).shard_count(), 2U);
  EXPECT_EQ(folder.entries(), 3U);  // with the index
}

TEST(Sharded, EveryFileMayBeALink) {
  const TempFolder cache, folder;
  write_model(cache.path(), 20);
  for (const auto& file : std::filesystem::directory_iterator(cache.path())) {
    ASSERT_EQ(::symlink(file.path().c_str(), (folder / file.path().filename().string()).c_str()),
              0);
  }
  EXPECT_EQ(ShardedReader::open(folder.path()).names().size(), 10U);
  EXPECT_EQ(ShardedReader::open(folder / kModelIndexFile).names().size(), 10U);
  std::vector<std::string> paths = {folder.path()};
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    paths.push_back(file.path().string());
  }
  for (const std::string& path : paths) {
    EXPECT_TRUE(holds(error_of([&] { ShardedReader::open(path, Symlinks::kRefuse); }),
                      "expected a regular file, got a symbolic link"))
        << path;
  }
}

}  // namespace
}  // namespace diffattn::io
