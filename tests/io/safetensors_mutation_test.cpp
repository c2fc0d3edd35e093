// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <set>

#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::parse_file;
using testing::safetensors_file;
using testing::TempFolder;

constexpr int kSeeds = 16;

// Returns valid files that together cover every dtype and rank, empty tensors, metadata, escapes,
// and JSON with and without white space. File i is the same in every run.
std::string seed_file(int i) {
  std::mt19937 random(static_cast<unsigned>(i) + 1);
  const std::string space = i % 4 == 3 ? " " : "";
  std::string header = i % 5 == 4 ? "\n {" : "{";
  if (i % 3 == 0)
    header += "\"__metadata__\":{\"format\":\"pt\",\"n\\u00e9\":\"\\n" + space + "\"},";
  uint64_t next = 0;
  for (int t = 0; t < 6; ++t) {
    const Dtype dtype = all_dtypes()[static_cast<size_t>(i * 6 + t) % kDtypeCount];
    TensorSpec spec{"", dtype, {}};
    const size_t rank = random() % (kMaxRank + 1);
    for (size_t d = 0; d < rank; ++d) spec.shape.push_back(1 + random() % 2);
    if (dtype_bits(dtype) < 8) spec.shape = {4};
    if (random() % 6 == 0) spec.shape = {0, 3};
    const uint64_t end = next + tensor_bytes(spec, "seed");
    header += "\"layers." + std::to_string(t) + ".w\":{" + space + "\"dtype\":\"" +
              std::string(dtype_name(dtype)) + "\"," + space +
              "\"shape\":" + shape_text(spec.shape) + ",\"data_offsets\":[" + std::to_string(next) +
              "," + std::to_string(end) + "]},";
    next = end;
  }
  header.back() = '}';
  return safetensors_file(header, next);
}

// Checks a parsed header with independent arithmetic.
void expect_consistent(const SafetensorsHeader& header, uint64_t file_size) {
  unsigned __int128 next = 0;
  std::set<std::string> names;
  for (const TensorInfo& info : header.tensors()) {
    unsigned __int128 bits = dtype_bits(info.dtype);
    for (const int64_t d : info.shape) bits *= static_cast<uint64_t>(d);
    ASSERT_LE(info.shape.size(), kMaxRank);
    ASSERT_EQ(info.begin, static_cast<uint64_t>(next));
    next += bits / 8;
    ASSERT_TRUE(bits % 8 == 0 && info.end == static_cast<uint64_t>(next));
    ASSERT_TRUE(names.insert(info.name).second);
    ASSERT_EQ(header.find(info.name), &info);
  }
  ASSERT_TRUE(next + header.data_begin() == file_size);
}

struct Tally {
  int tried = 0;
  int loaded = 0;

  // Any result but a consistent header or an io::Error fails the test.
  void attempt(std::string_view content) {
    ++tried;
    try {
      const SafetensorsHeader header = parse_file(content);
      ++loaded;
      expect_consistent(header, content.size());
    } catch (const Error& error) {
      if (error.offset()) {
        ASSERT_LE(*error.offset(), content.size()) << error.what();
      }
    }
  }
};

TEST(SafetensorsMutation, SeedsAreValid) {
  for (int i = 0; i < kSeeds; ++i) {
    const std::string content = seed_file(i);
    expect_consistent(parse_file(content), content.size());
  }
}

TEST(SafetensorsMutation, EveryTruncationAndEveryHeaderBitFlip) {
  Tally cut, flip;
  for (int i = 0; i < kSeeds; ++i) {
    const std::string content = seed_file(i);
    const uint64_t header_end = parse_file(content).data_begin();
    for (size_t size = 0; size < content.size(); ++size) {
      cut.attempt(std::string_view(content).substr(0, size));
    }
    std::string flipped = content;
    for (size_t bit = 0; bit < 8 * header_end; ++bit) {
      const char mask = static_cast<char>(1 << (bit % 8));
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ mask);
      flip.attempt(flipped);
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ mask);
    }
    ASSERT_FALSE(HasFatalFailure()) << "seed " << i;
  }
  EXPECT_EQ(cut.loaded, 0);
  EXPECT_GT(flip.loaded, 0);  // changing a letter of a name keeps a file valid
  EXPECT_LT(flip.loaded, flip.tried / 4);
  EXPECT_GE(cut.tried + flip.tried, 60'000);
  RecordProperty("truncations", cut.tried);
  RecordProperty("bit_flips", flip.tried);
  RecordProperty("still_valid", flip.loaded);
}

// Splices parts of one file into another, changes digits, and sometimes corrects the header length.
TEST(SafetensorsMutation, RandomEdits) {
  std::mt19937 random(20'24);
  std::vector<std::string> seeds;
  for (int i = 0; i < kSeeds; ++i) seeds.push_back(seed_file(i));
  static const std::vector<std::string> kTokens = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "\"",
                                                   "0",
                                                   "-1",
                                                   "1e9",
                                                   "18446744073709551615",
                                                   "\\",
                                                   "{}",
                                                   "null",
                                                   "\"a\"",
                                                   "[0,0]",
                                                   "true",
                                                   "\xFF",
                                                   "\"U8\"",
                                                   "4294967296"};
  Tally tally;
  for (int round = 0; round < 20'000; ++round) {
    std::string content = seeds[random() % kSeeds];
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = 8 + random() % (content.size() - 8);
      const size_t span = random() % 12;
      const std::string& other = seeds[random() % kSeeds];
      switch (random() % 4) {
        case 0: content.replace(at, span, kTokens[random() % kTokens.size()]); break;
        case 1: content.erase(at, span); break;
        case 2: content.insert(at, other.substr(8 + random() % (other.size() - 8), span)); break;
        default: content[at] = static_cast<char>('0' + random() % 10);
      }
      if (content.size() < 16) content.resize(16);
    }
    if (random() % 2 == 0) {
      // Corrects the header length so that the header ends at its last brace.
      const size_t brace = content.rfind('}');
      if (brace != std::string::npos && brace >= 8) {
        content.replace(0, 8, testing::little_endian(brace - 7));
      }
    }
    tally.attempt(content);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
  RecordProperty("edits", tally.tried);
  RecordProperty("still_valid", tally.loaded);
}

// Tests one file from disk, through open, fstat and pread.
TEST(SafetensorsMutation, EveryTruncationOnDisk) {
  const TempFolder folder;
  const std::string content = seed_file(0);
  const std::string path = folder.put("m.safetensors", content);
  EXPECT_NO_THROW(SafetensorsReader::open(path));
  for (size_t size = content.size(); size-- > 0;) {
    std::filesystem::resize_file(path, size);
    EXPECT_THROW(SafetensorsReader::open(path), Error) << size;
  }
}

// Truncates a file while the reader has it open: every read returns the data or throws.
TEST(SafetensorsMutation, FileShrinksAfterOpening) {
  const TempFolder folder;
  const std::string content = seed_file(3);
  const std::string path = folder / "m.safetensors";
  for (size_t size = 0; size < content.size(); size += 16) {
    folder.put("m.safetensors", content);
    const SafetensorsReader reader = SafetensorsReader::open(path);
    std::filesystem::resize_file(path, size);
    for (const std::string& name : reader.names()) {
      const TensorInfo& info = reader.at(name);
      const bool there = info.bytes() == 0 || reader.header().data_begin() + info.end <= size;
      if (there) {
        EXPECT_EQ(reader.read_bytes(name).size(), info.bytes());
      } else {
        EXPECT_THROW(reader.read_bytes(name), Error);
      }
    }
  }
}

}  // namespace
}  // namespace diffattn::io
