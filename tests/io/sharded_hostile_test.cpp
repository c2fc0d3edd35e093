// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cctype>
#include <cstring>
#include <functional>
#include <set>

#include "io/safetensors/sharded.h"
#include "tests/io/allocation_probe.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::AllocationProbe;
using testing::holds;
using testing::safetensors_file;
using testing::TempFolder;

const std::string kShard =
    safetensors_file(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);

std::string index_of(const std::string& weight_map) {
  return "{\"weight_map\":" + weight_map + "}";
}
std::string map_to(const std::string& shard) { return index_of("{\"x\":\"" + shard + "\"}"); }

struct IndexCase {
  std::string label;
  std::string index;
  std::string fragment;
  std::function<void(const TempFolder&)> prepare = [](const TempFolder&) {};
};

// Names with forbidden characters, which are rejected before any file is opened.
std::vector<IndexCase> shard_name_cases() {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"empty", ""},
      {"dot", "."},
      {"dot dot", ".."},
      {"parent", "../a.safetensors"},
      {"parent of a child", "sub/../../a.safetensors"},
      {"absolute", "/etc/passwd"},
      {"folder", "sub/a.safetensors"},
      {"same folder", "./a.safetensors"},
      {"trailing slash", "a.safetensors/"},
      {"double slash", "//a.safetensors"},
      {"backslash", "..\\\\a.safetensors"},
      {"drive", "C:a.safetensors"},
      {"address", "http://host/a.safetensors"},
      {"file address", "file:a.safetensors"},
      {"escaped NUL", "a.safetensors\\u0000.txt"},
      {"leading NUL", "\\u0000a.safetensors"},
      {"newline", "a\\n.safetensors"},
      {"tab", "\\ta.safetensors"},
      {"escape sequence", "\\u001b[2Ja.safetensors"},
      {"leading space", " a.safetensors"},
      {"trailing space", "a.safetensors "},
      {"home", "~a.safetensors"},
      {"percent", "%2e%2e%2fa.safetensors"},
      {"wildcard", "*.safetensors"},
      {"question mark", "?.safetensors"},
      {"command", "$(id).safetensors"},
      {"pipe", "|id"},
      {"semicolon", "a;b"},
      {"quote", "a\\\"b"},
      {"full-width letter", "\xEF\xBD\x81.safetensors"},
      {"full-width slash",
       "..\xEF\xBC\x8F"
       "a.safetensors"},
      {"right-to-left mark", "a\xE2\x80\xAE.safetensors"},
      {"256 bytes", std::string(256, 'a')},
      {"64 KiB", std::string(65536, 'a')},
  };
  std::vector<IndexCase> cases;
  for (const auto& [label, name] : names) {
    cases.push_back({"name: " + label, map_to(name), "key 'weight_map.x': expected a shard name"});
  }
  return cases;
}

// Valid names of files that are not regular or not valid shards.
std::vector<IndexCase> file_cases() {
  const auto link = [](const std::string& target) {
    return [target](const TempFolder& folder) {
      ASSERT_EQ(::symlink(target.c_str(), (folder / "s").c_str()), 0);
    };
  };
  const auto content = [](const std::string& text) {
    return [text](const TempFolder& folder) { folder.put("s", text); };
  };
  const std::string other =
      safetensors_file(R"({"y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);
  return {
      {"missing", map_to("s"), "No such file"},
      {"link to another format", map_to("s"), "expected a header", link("/etc/passwd")},
      {"link to a device", map_to("s"), "got a device", link("/dev/zero")},
      {"link to a folder", map_to("s"), "got a directory", link("/")},
      {"dangling link", map_to("s"), "No such file", link("nowhere")},
      {"link to itself", map_to("s"), "levels of symbolic links", link("s")},
      {"folder as shard", map_to("s"), "got a directory",
       [](const TempFolder& folder) { std::filesystem::create_directory(folder / "s"); }},
      {"FIFO", map_to("s"), "got a FIFO",
       [](const TempFolder& folder) { ASSERT_EQ(::mkfifo((folder / "s").c_str(), 0600), 0); }},
      {"socket", map_to("s"), "expected a readable file",
       [](const TempFolder& folder) {
         const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
         sockaddr_un address = {};
         address.sun_family = AF_UNIX;
         std::strncpy(address.sun_path, (folder / "s").c_str(), sizeof address.sun_path - 1);
         ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
         ::close(fd);
       }},
      {"empty shard", map_to("s"), "got a file of 0 bytes", content("")},
      {"cut shard", map_to("s"), "within the 1 bytes of data",
       content(kShard.substr(0, kShard.size() - 1))},
      {"text as shard", map_to("s"), "at most 100000000", content("not a tensor file")},
      {"the index as shard", map_to(kModelIndexFile), "at most 100000000"},
      {"tensor not in the shard", map_to("s"), "expected tensor 'x' in s, got none there",
       content(other)},
      {"tensor in the other shard", index_of(R"({"x":"s","y":"good.safetensors"})"),
       "expected tensor 'y' in good.safetensors", content(kShard)},
      {"one tensor of many missing", index_of(R"({"x":"good.safetensors","z":"good.safetensors"})"),
       "expected tensor 'z'"},
  };
}

std::vector<IndexCase> document_cases() {
  const std::string good = "\"good.safetensors\"";
  std::string shards = "{";
  for (size_t i = 0; i <= kMaxShards; ++i) {
    shards += "\"t" + std::to_string(i) + "\":\"s" + std::to_string(i) + "\",";
  }
  shards.back() = '}';
  return {
      {"empty document", "", "the end of the text"},
      {"cut document", "{\"weight_map\":{\"x\":", "the end of the text"},
      {"text after the document", map_to("good.safetensors") + "x", "got 'x'"},
      {"NUL after the document", map_to("good.safetensors") + std::string(1, '\0'), "NUL byte"},
      {"invalid UTF-8", index_of("{\"\xFF\":" + good + "}"), "ill-formed UTF-8"},
      {"array on top", "[]", "expected an object, got an array"},
      {"null on top", "null", "expected an object, got null"},
      {"no weight_map", "{}", "key 'weight_map': expected a value"},
      {"weight_map null", index_of("null"), "maps tensor names to shards, got null"},
      {"weight_map array", index_of("[]"), "maps tensor names to shards, got an array"},
      {"weight_map string", index_of(good), "maps tensor names to shards, got string"},
      {"weight_map empty", index_of("{}"), "maps tensor names to shards, got an object"},
      {"shard is a number", index_of("{\"x\":1}"), "expected the name of a shard, got number 1"},
      {"shard is null", index_of("{\"x\":null}"), "expected the name of a shard, got null"},
      {"shard is a list", index_of("{\"x\":[" + good + "]}"), "the name of a shard, got an array"},
      {"shard is an object", index_of("{\"x\":{}}"), "the name of a shard, got an object"},
      {"tensor twice", index_of("{\"x\":" + good + ",\"x\":" + good + "}"), "a second 'x'"},
      {"tensor twice, once escaped", index_of("{\"x\":" + good + ",\"\\u0078\":\"s\"}"),
       "a second 'x'"},
      {"weight_map twice", "{\"weight_map\":{},\"weight_map\":{}}", "a second 'weight_map'"},
      {"tensor name empty", index_of("{\"\":" + good + "}"), "1 to 1024 bytes, got one of 0"},
      {"tensor name long", index_of("{\"" + std::string(1025, 'n') + "\":" + good + "}"),
       "got one of 1025"},
      {"tensor name with control", index_of("{\"\\u001b\":" + good + "}"), "control characters"},
      {"metadata is a string", "{\"metadata\":\"x\",\"weight_map\":{\"x\":" + good + "}}",
       "key 'metadata'"},
      {"total_size negative", "{\"metadata\":{\"total_size\":-1},\"weight_map\":{}}",
       "total_size': expected a number"},
      {"total_size text", "{\"metadata\":{\"total_size\":\"1\"},\"weight_map\":{}}",
       "got string \"1\""},
      {"total_size 1e400", "{\"metadata\":{\"total_size\":1e400},\"weight_map\":{}}",
       "range of double"},
      {"total_size 2^64", "{\"metadata\":{\"total_size\":18446744073709551616}}",
       "fits in 64 bits"},
      {"deep nesting", "{\"metadata\":" + std::string(100'000, '['), "nesting no deeper than 8"},
      {"too many shards", index_of(shards), "at most 4096 shards"},
      {"too large", map_to("good.safetensors") + std::string(kMaxIndexBytes, ' '),
       "at most 33554432 bytes"},
  };
}

TEST(ShardedHostile, EveryIndexIsRefusedForItsOwnReason) {
  std::vector<IndexCase> cases = shard_name_cases();
  for (const auto& part : {file_cases(), document_cases()}) {
    cases.insert(cases.end(), part.begin(), part.end());
  }
  std::set<std::string> labels;
  for (const IndexCase& c : cases) {
    SCOPED_TRACE(c.label);
    EXPECT_TRUE(labels.insert(c.label).second);
    const TempFolder folder;
    folder.put("good.safetensors", kShard);
    // The file that a path traversal would reach.
    std::filesystem::create_directory(folder / "sub");
    folder.put("a.safetensors", kShard);
    folder.put("sub/a.safetensors", kShard);
    folder.put(kModelIndexFile, c.index);
    c.prepare(folder);
    AllocationProbe::reset();
    for (const std::string& path : {folder.path(), folder / kModelIndexFile}) {
      try {
        ShardedReader::open(path);
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_TRUE(holds(error.what(), c.fragment)) << error.what();
        EXPECT_TRUE(holds(error.what(), folder.path())) << error.what();
        EXPECT_LE(error.message().size(), 400U);
      }
    }
    EXPECT_LE(AllocationProbe::largest(), testing::allocation_bound(c.index.size()));
  }
  EXPECT_GE(cases.size(), 40U);
  RecordProperty("hostile_indices", static_cast<int>(cases.size()));
}

TEST(ShardedHostile, ShardNamesByTheirLetters) {
  for (const char* name :
       {"a", "model-00001-of-00002.safetensors", "A_b.C-9", "...", "-", "a..b"}) {
    EXPECT_TRUE(is_shard_name(name)) << name;
  }
  EXPECT_TRUE(is_shard_name(std::string(255, 'a')));
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const bool allowed =
        std::strchr(".-_", c) != nullptr ? c != '\0' : byte < 128 && std::isalnum(byte) != 0;
    EXPECT_EQ(is_shard_name(std::string("a") + c), allowed) << byte;
  }
}

TEST(ShardedHostile, FoldersThatAreNoModels) {
  const TempFolder folder;
  const auto refused = [](const std::string& path, const std::string& fragment) {
    const std::string what = testing::error_of([&] { ShardedReader::open(path); });
    EXPECT_TRUE(holds(what, fragment)) << what;
  };
  refused(folder.path(), "got neither");
  refused(folder / "none", "No such file");
  refused(folder / "none.index.json", "No such file");
  refused(folder / "none/model.safetensors.index.json", "expected a directory");
  refused("/dev/null", "got a device");
  std::filesystem::create_directory(folder / kModelIndexFile);
  refused(folder.path(), "got a directory");
  std::filesystem::create_directory(folder / kModelFile);
  refused(folder.path(), "got a directory");
}

// Every truncation and every bit flip of an index gives a model or an io::Error.
TEST(ShardedHostile, MutatedIndex) {
  const TempFolder folder;
  folder.put("good.safetensors", kShard);
  const std::string index =
      "{\"metadata\":{\"total_size\":2},\"weight_map\":{\"x\":\"good.safetensors\"}}";
  int tried = 0;
  int loaded = 0;
  const auto attempt = [&](const std::string& text) {
    folder.put(kModelIndexFile, text);
    ++tried;
    try {
      const ShardedReader reader = ShardedReader::open(folder.path());
      ++loaded;
      EXPECT_EQ(reader.read_bytes("x").size(), 2U);
    } catch (const Error&) {
    }
  };
  for (size_t size = 0; size < index.size(); ++size) attempt(index.substr(0, size));
  EXPECT_EQ(loaded, 0);
  for (size_t bit = 0; bit < 8 * index.size(); ++bit) {
    std::string flipped = index;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    attempt(flipped);
  }
  RecordProperty("mutated_indices", tried);
}

}  // namespace
}  // namespace diffattn::io
