// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "diffattn/io/json.h"
#include "io/checked.h"
#include "tests/io/allocation_probe.h"
#include "tests/io/test_files.h"

namespace {

std::atomic<size_t> largest_request{0};
std::atomic<size_t> live_bytes{0};
std::atomic<size_t> peak_bytes{0};
size_t live_at_reset = 0;

// The size is stored in front of each block, padded so that the block stays aligned.
constexpr size_t kPrefix = alignof(std::max_align_t);

void* counted_allocate(size_t size) {
  void* block = std::malloc(size + kPrefix);
  if (block == nullptr) throw std::bad_alloc();
  *static_cast<size_t*>(block) = size;
  const size_t live = live_bytes += size;
  if (size > largest_request) largest_request = size;
  if (live > peak_bytes) peak_bytes = live;
  return static_cast<char*>(block) + kPrefix;
}

void counted_release(void* pointer) noexcept {
  if (pointer == nullptr) return;
  void* block = static_cast<char*>(pointer) - kPrefix;
  live_bytes -= *static_cast<size_t*>(block);
  std::free(block);
}

}  // namespace

void* operator new(size_t size) { return counted_allocate(size); }
void* operator new[](size_t size) { return counted_allocate(size); }
/// std::stable_sort uses this form. A sanitizer's version would not store the size.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return counted_allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* pointer) noexcept { counted_release(pointer); }
void operator delete(void* pointer, const std::nothrow_t&) noexcept { counted_release(pointer); }
void operator delete[](void* pointer) noexcept { counted_release(pointer); }
void operator delete(void* pointer, size_t) noexcept { counted_release(pointer); }
void operator delete[](void* pointer, size_t) noexcept { counted_release(pointer); }

namespace diffattn::io {

void testing::AllocationProbe::reset() {
  largest_request = 0;
  live_at_reset = live_bytes;
  peak_bytes = live_at_reset;
}
size_t testing::AllocationProbe::largest() { return largest_request; }
size_t testing::AllocationProbe::peak_live() { return peak_bytes - live_at_reset; }

namespace {

using testing::AllocationProbe;
using testing::error_of;
using testing::holds;
using testing::parse_file;
using testing::safetensors_file;

// Relaxes time limits for sanitizers and busy machines.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSlowdown = 20;
#else
constexpr double kSlowdown = 1;
#endif

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string many_tensors(size_t count) {
  std::string header = "{";
  for (size_t i = 0; i < count; ++i) {
    header += "\"model.layers." + std::to_string(i) +
              ".weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" +
              std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]},";
  }
  header.back() = '}';
  return safetensors_file(header, 4 * count);
}

TEST(Checked, ArithmeticAtItsEdges) {
  static_assert(checked_add(1, 2) == 3U);
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_FALSE(checked_add(kMax, 1));
  EXPECT_FALSE(checked_add(kMax, kMax));
  EXPECT_EQ(checked_sub(kMax, kMax), 0U);
  EXPECT_FALSE(checked_sub(0, 1));
  EXPECT_EQ(checked_mul(kMax, 1), kMax);
  EXPECT_EQ(checked_mul(kMax, 0), 0U);
  EXPECT_EQ(checked_mul(1ULL << 32, (1ULL << 32) - 1), ((1ULL << 32) - 1) << 32);
  EXPECT_FALSE(checked_mul(1ULL << 32, 1ULL << 32));
  EXPECT_FALSE(checked_mul(kMax, 2));
}

// Covers each place where a loader or the writer computes a size from its input.
TEST(SafetensorsLimits, OverflowAtEachArithmeticSite) {
  const auto parse = [](const std::string& header) {
    return error_of([&] { parse_file(safetensors_file(header, 4)); });
  };
  const std::string max = std::to_string(kMax);
  // 8 + N
  EXPECT_TRUE(
      holds(error_of([] { parse_file(testing::little_endian(kMax - 3) + "{}"); }), "at most"));
  // product of dimensions, times bits
  EXPECT_TRUE(
      holds(parse(R"({"a":{"dtype":"U8","shape":[9223372036854775807,3],"data_offsets":[0,4]}})"),
            "elements below 2^64"));
  EXPECT_TRUE(
      holds(parse(R"({"a":{"dtype":"BF16","shape":[1152921504606846976],"data_offsets":[0,4]}})"),
            "bits below 2^64"));
  // end - begin
  EXPECT_TRUE(holds(parse(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" + max + ",3]}}"),
                    "in order"));
  // running end of the data
  EXPECT_TRUE(holds(parse(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" +
                          std::to_string(kMax - 4) + "," + max + "]}}"),
                    "begin at 0"));
  // offset + length of a read
  const testing::TempFolder folder;
  const File file = File::open(folder.put("f", "x"));
  std::vector<std::byte> two(2);
  EXPECT_TRUE(holds(error_of([&] { file.read(kMax, two); }), "expected 2 bytes"));
  // offset + length of a write
  AtomicFile out(folder / "g");
  EXPECT_TRUE(holds(error_of([&] { out.write_at(kMax, two); }), "size limit"));
  EXPECT_TRUE(holds(error_of([&] { out.write_at(kMax / 2, two); }), "size limit"));
  // sum of declared tensors
  const TensorSpec huge{"a", Dtype::kU8, {(1LL << 61) - 1}};
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 9; ++i) specs.push_back({"t" + std::to_string(i), huge.dtype, huge.shape});
  EXPECT_TRUE(holds(error_of([&] { SafetensorsWriter w(folder / "h", specs); }), "less than 2^64"));
}

TEST(SafetensorsLimits, ManyTensorsParseInTime) {
  const std::string content = many_tensors(100'000);
  const auto start = std::chrono::steady_clock::now();
  const SafetensorsHeader header = parse_file(content);
  for (const TensorInfo& info : header.tensors()) ASSERT_EQ(header.find(info.name), &info);
  const double seconds = seconds_since(start);
  EXPECT_EQ(header.tensors().size(), 100'000U);
  EXPECT_LT(seconds, 5.0 * kSlowdown);  // takes 0.1 s in an optimised build on an idle machine
  RecordProperty("milliseconds", static_cast<int>(1000 * seconds));
}

TEST(SafetensorsLimits, RefusesTooManyTensors) {
  std::string header = "{";
  for (size_t i = 0; i <= kMaxTensors; ++i) {
    header += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)";
  }
  header.back() = '}';
  const std::string content = safetensors_file(header, 1);
  AllocationProbe::reset();
  EXPECT_TRUE(holds(error_of([&] { parse_file(content); }), "at most 1048576 tensors"));
  EXPECT_LE(AllocationProbe::largest(), testing::allocation_bound(content.size()));
}

TEST(SafetensorsLimits, RefusesTooMuchMetadata) {
  std::string entries;
  Metadata metadata;
  for (size_t i = 0; i <= kMaxMetadataEntries; ++i) {
    entries += "\"" + std::to_string(i) + "\":\"\",";
    metadata[std::to_string(i)] = "";
  }
  entries.back() = '}';
  const std::string content = safetensors_file("{\"__metadata__\":{" + entries + "}", 0);
  EXPECT_TRUE(holds(error_of([&] { parse_file(content); }), "at most 65536 metadata entries"));
  const testing::TempFolder folder;
  EXPECT_TRUE(
      holds(error_of([&] { SafetensorsWriter(folder / "m", {}, metadata); }), "at most 65536"));
  metadata.erase("0");
  SafetensorsWriter(folder / "m", {}, metadata).commit();
  EXPECT_EQ(SafetensorsReader::open(folder / "m").metadata(), metadata);
}

// For large hostile headers of every kind, time and memory stay proportional to the file.
TEST(SafetensorsLimits, AllocationsStayWithinTheFile) {
  constexpr size_t kSize = 4 << 20;
  const auto repeat = [](std::string_view piece) {
    std::string text;
    while (text.size() < kSize) text += piece;
    return text;
  };
  const std::vector<std::string> headers = {
      std::string(kSize, '['),
      std::string(kSize, ' ') + "{}",
      "{\"" + std::string(kSize, 'n') + "\":1}",
      "{\"a\":{\"dtype\":\"" + std::string(kSize, 'F') + "\"}}",
      "{\"a\":{\"shape\":[" + repeat("1,") + "1]}}",
      "{\"a\":{\"shape\":[" + std::string(kSize, '9') + "]}}",
      "{\"a\":{\"data_offsets\":[" + repeat("0,") + "0]}}",
      "{\"__metadata__\":{\"k\":\"" + repeat("\\u00e9") + "\"}}",
      "{\"__metadata__\":{\"" + repeat("\\n") + "\":\"v\"}}",
      "{" + repeat("\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]},") + "}",
      "{\"a\":" + repeat("{\"a\":") + "}",
  };
  for (size_t i = 0; i < headers.size(); ++i) {
    const std::string content = safetensors_file(headers[i], 0);
    AllocationProbe::reset();
    const auto start = std::chrono::steady_clock::now();
    try {
      parse_file(content);
    } catch (const Error&) {
    }
    EXPECT_LT(seconds_since(start), 5.0 * kSlowdown) << i;
    EXPECT_LE(AllocationProbe::largest(), testing::allocation_bound(content.size())) << i;
    EXPECT_LE(AllocationProbe::peak_live(), testing::allocation_bound(content.size())) << i;
  }
  // A header length of 100 MB in a file of 16 bytes must not allocate that much.
  const testing::TempFolder folder;
  AllocationProbe::reset();
  EXPECT_THROW(SafetensorsReader::open(
                   folder.put("m", testing::little_endian(kMaxHeaderBytes) + "{}      ")),
               Error);
  EXPECT_LT(AllocationProbe::largest(), size_t{1} << 20);
  // The header describes a tensor of one terabyte; the file has four bytes of data.
  AllocationProbe::reset();
  EXPECT_THROW(
      parse_file(safetensors_file(
          R"({"a":{"dtype":"F32","shape":[274877906944],"data_offsets":[0,1099511627776]}})", 4)),
      Error);
  EXPECT_LT(AllocationProbe::largest(), size_t{1} << 20);
}

TEST(JsonLimitsTest, AllocationsStayWithinTheFile) {
  constexpr size_t kSize = 9 << 20;  // more than 2^22 values of two bytes each
  std::string array = "[";
  while (array.size() < kSize) array += "1,";
  array.back() = ']';
  std::string text = "\"" + std::string(kSize, 'x') + "\"";
  for (const std::string& document : {array, text}) {
    AllocationProbe::reset();
    try {
      parse_json(document, "t");
    } catch (const Error&) {
    }
    EXPECT_LE(AllocationProbe::largest(), testing::allocation_bound(document.size()));
  }
}

}  // namespace
}  // namespace diffattn::io
