// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "io/file_checksums.h"
#include "io/hash.h"
#include "io/manifest.h"
#include "tests/io/test_files.h"

namespace diffattn::io::manifest_test {
namespace {

using io::testing::TempFolder;

const Manifest kSmall{
    .ranks = 2,
    .entries = {{"config.json", 2, 0x0123456789abcdefu}, {"rank-00001/state.json", 1ull << 40, 7}}};

TEST(Manifest, IsReadAsItWasWritten) { EXPECT_EQ(Manifest::parse(kSmall.to_json(), "m"), kSmall); }

TEST(Manifest, RefusesWhatIsNoManifest) {
  const std::string whole = kSmall.to_json();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("[]"), with("diffattn checkpoint", "other"),
        with("\"version\": 1", "\"version\": 2"), with("xxh64-16MiB", "crc32"),
        with("\"ranks\": 2", "\"ranks\": 0"), with("\"bytes\": 2", "\"bytes\": -2"),
        with("0123456789abcdef", "0123456789ABCDEF"), with("0123456789abcdef", "123456789abcdef"),
        with("0123456789abcdef", "0x23456789abcdef"), with("config.json", "../config.json"),
        with("config.json", "/config.json"), with("config.json", "a/b/c"),
        with("config.json", ".."), with("config.json", "rank-00001/.."), with("config.json", ""),
        with("config.json", "con\\u0000fig"), whole.substr(0, whole.size() / 2)}) {
    EXPECT_THROW(Manifest::parse(text, "m"), Error) << text;
  }
}

TEST(Manifest, AFolderWithoutFilesIsNoCheckpoint) {
  const std::string text = Manifest{.ranks = 1, .entries = {}}.to_json();
  try {
    Manifest::parse(text, "m");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_TRUE(testing::holds(error.what(), "key 'files': expected 1 to ")) << error.what();
  }
}

TEST(Manifest, NamesTheFileThatDiffers) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "rank-00000");
  folder.put("a", "12345");
  folder.put("rank-00000/b", "");
  const Manifest manifest = manifest_of(folder.path(), 1);
  ASSERT_EQ(manifest.entries.size(), 2u);
  EXPECT_NO_THROW(check_files(folder.path(), manifest));
  const auto message = [&] {
    try {
      check_files(folder.path(), manifest);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  folder.put("a", "12346");
  EXPECT_EQ(message().find((folder / "a") + ": expected the checksum"), 0u);
  folder.put("a", "1234");
  EXPECT_EQ(message().find((folder / "a") + ": expected 5 bytes"), 0u);
  folder.put("a", "12345");
  std::filesystem::remove(folder / "rank-00000/b");
  EXPECT_EQ(message().find((folder / "rank-00000/b") + ": expected a readable file"), 0u);
}

TEST(Manifest, TakesFilesThatAnotherProcessHasRead) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "rank-00001");
  folder.put("a", "12345");
  folder.put("rank-00001/b", "123");
  const Manifest::Entry known{.path = "rank-00001/b", .bytes = 3, .checksum = 17};
  const Manifest manifest = manifest_of(folder.path(), 2, {known});
  ASSERT_EQ(manifest.entries.size(), 2u);
  EXPECT_EQ(manifest.entries[0], manifest_of(folder.path(), 2).entries[0]);
  EXPECT_EQ(manifest.entries[1], known) << "it reads no known file";
  const auto message = [&](const Manifest::Entry& entry) {
    try {
      manifest_of(folder.path(), 2, {entry});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(
      message({"rank-00001/b", 4, 17}),
      (folder / "rank-00001/b") + ": expected 4 bytes as the process that wrote it told, got 3");
  EXPECT_EQ(message({"rank-00002/b", 4, 17}), (folder / "rank-00002/b") + ": is missing");
}

TEST(FileChecksums, DoNotDependOnThreadsAndSeeEveryByte) {
  const TempFolder folder;
  std::string data(2 * kChecksumChunkBytes + 1001, 'x');
  for (size_t i = 0; i < data.size(); i += 4096) data[i] = static_cast<char>(i >> 12);
  const auto checksum_of = [&](const std::string& text) {
    std::vector<File> files;
    files.push_back(File::open(folder.put("data", text)));
    return file_checksums(files).at(0);
  };
  Hash64 hash;
  for (size_t at = 0; at < data.size(); at += kChecksumChunkBytes) {
    const uint64_t chunk = hash64(std::string_view(data).substr(at, kChecksumChunkBytes));
    hash.update(std::as_bytes(std::span(&chunk, 1)));
  }
  EXPECT_EQ(checksum_of(data), hash.digest());
  for (const size_t at : {size_t{0}, size_t{kChecksumChunkBytes}, data.size() - 1}) {
    data[at] = static_cast<char>(data[at] ^ 1);
    EXPECT_NE(checksum_of(data), hash.digest()) << at;
    data[at] = static_cast<char>(data[at] ^ 1);
  }
}

}  // namespace
}  // namespace diffattn::io::manifest_test
