// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/safetensors.h"

#include <complex>
#include <cstring>
#include <random>

#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::holds;
using testing::parse_file;
using testing::safetensors_file;
using testing::slurp;
using testing::TempFolder;

std::vector<std::byte> random_bytes(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> data(size);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

TEST(Safetensors, EveryDtypeAndRankRoundTrips) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  const std::vector<std::vector<int64_t>> shapes = {
      {8}, {2, 4}, {0}, {3, 0, 5}, {1, 2, 1, 2, 1, 2, 1, 1}, {4, 3, 2}};
  std::vector<TensorSpec> specs;
  for (const Dtype dtype : all_dtypes()) {
    if (dtype_bits(dtype) % 8 == 0) {
      specs.push_back({std::string(dtype_name(dtype)) + ".scalar", dtype, {}});
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      specs.push_back({std::string(dtype_name(dtype)) + "." + std::to_string(i), dtype, shapes[i]});
    }
  }
  const Metadata metadata = {{"format", "pt"}, {"quote\"\\\n", "\xC3\xA9\t"}, {"", ""}};
  SafetensorsWriter writer(path, specs, metadata);
  // Writes in reverse: tensors may come in any order.
  for (size_t i = specs.size(); i-- > 0;) {
    writer.write(specs[i].name, random_bytes(tensor_bytes(specs[i], path), unsigned(i)));
  }
  writer.commit();

  const SafetensorsReader reader = SafetensorsReader::open(path);
  EXPECT_EQ(reader.metadata(), metadata);
  EXPECT_EQ(reader.names().size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorInfo* info = reader.find(specs[i].name);
    ASSERT_NE(info, nullptr) << specs[i].name;
    EXPECT_EQ(info->dtype, specs[i].dtype);
    EXPECT_EQ(info->shape, specs[i].shape);
    EXPECT_EQ(reader.read_bytes(specs[i].name), random_bytes(info->bytes(), unsigned(i)));
  }
}

TEST(Safetensors, DtypeTableIsTheFormats) {
  size_t sub_byte = 0;
  for (const Dtype dtype : all_dtypes()) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    sub_byte += dtype_bits(dtype) < 8 ? 1 : 0;
  }
  EXPECT_EQ(all_dtypes().size(), 22U);
  EXPECT_EQ(sub_byte, 3U);
  EXPECT_EQ(dtype_bits(Dtype::kF4), 4U);
  EXPECT_EQ(dtype_bits(Dtype::kC64), 64U);
  EXPECT_FALSE(parse_dtype("f32"));
  EXPECT_FALSE(parse_dtype(""));
}

// The file must have the same bytes as that of the reference implementation.
TEST(Safetensors, WritesTheCanonicalBytes) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  SafetensorsWriter writer(path, {{"attn.0", Dtype::kF32, {1, 2, 3}}});
  writer.write_as<float>("attn.0", values);
  writer.commit();
  const std::string header = R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})";
  std::string expected = safetensors_file(header, 24);
  std::memcpy(expected.data() + 8 + header.size(), values.data(), 24);
  EXPECT_EQ(slurp(path), expected);

  SafetensorsWriter(path, {}).commit();
  EXPECT_EQ(slurp(path), safetensors_file("{}      ", 0));
  SafetensorsWriter(path, {}, {{"framework", "pt"}}).commit();
  EXPECT_EQ(slurp(path), safetensors_file(R"({"__metadata__":{"framework":"pt"}}     )", 0));
}

TEST(Safetensors, WriterSortsAndPads) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  SafetensorsWriter writer(path, {{"b", Dtype::kU8, {3}}, {"a\"\xC3\xA9", Dtype::kU8, {1}}});
  writer.write("b", bytes_of("bbb"));
  writer.write("a\"\xC3\xA9", bytes_of("a"));
  writer.commit();
  const std::string content = slurp(path);
  EXPECT_EQ(content[8], '{');
  EXPECT_EQ((content.size() - 4) % 8, 0U);
  EXPECT_EQ(content.substr(content.size() - 4), "abbb");
  EXPECT_EQ(SafetensorsReader::open(path).names(), (std::vector<std::string>{"a\"\xC3\xA9", "b"}));
}

TEST(Safetensors, WriterRefusesBadRequests) {
  const TempFolder folder;
  const std::string path = folder.put("m.safetensors", "old");
  const auto refused = [&](std::vector<TensorSpec> specs, const std::string& fragment,
                           const Metadata& metadata = {}) {
    const std::string what = error_of([&] { SafetensorsWriter(path, specs, metadata).commit(); });
    EXPECT_TRUE(holds(what, fragment)) << what;
  };
  refused({{"a", Dtype::kU8, {1}}, {"a", Dtype::kU8, {1}}}, "'a' twice");
  refused({{"", Dtype::kU8, {1}}}, "1 to 1024 bytes");
  refused({{std::string(1025, 'n'), Dtype::kU8, {1}}}, "1 to 1024 bytes, got one of 1025");
  refused({{"a\nb", Dtype::kU8, {1}}}, "without control characters");
  refused({{"\xFF", Dtype::kU8, {1}}}, "valid UTF-8");
  refused({{"__metadata__", Dtype::kU8, {1}}}, "got __metadata__");
  refused({{"a", Dtype::kU8, {-1}}}, "at least 0");
  refused({{"a", Dtype::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1}}}, "at most 8 dimensions, got 9");
  refused({{"a", Dtype::kF4, {3}}}, "whole number of bytes");
  refused({{"a", Dtype::kU8, {1LL << 62, 4}}}, "elements below 2^64");
  refused({{"a", Dtype::kF64, {1LL << 58}}}, "bits below 2^64");
  refused({}, "valid UTF-8", {{"k", "\xFF"}});
  refused({{"a", Dtype::kU8, {1}}}, "tensor 'a': expected data before commit");
  SafetensorsWriter writer(path, {{"a", Dtype::kU8, {2}}, {"e", Dtype::kU8, {0}}});
  EXPECT_TRUE(holds(error_of([&] { writer.write("x", {}); }), "declared tensor, got 'x'"));
  EXPECT_TRUE(holds(error_of([&] { writer.write("a", bytes_of("abc")); }), "2 bytes, got 3"));
  EXPECT_TRUE(holds(error_of([&] { writer.write_as<float>("a", {}); }), "dtype U8, got F32"));
  writer.write("a", bytes_of("ab"));
  EXPECT_TRUE(holds(error_of([&] { writer.write("a", bytes_of("ab")); }), "one write"));
  writer.write("e", {});
  EXPECT_EQ(slurp(path), "old");
}

TEST(Safetensors, AccessChecksTheDtype) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  std::vector<TensorSpec> specs;
  for (const Dtype dtype : all_dtypes())
    specs.push_back({std::string(dtype_name(dtype)), dtype, {8}});
  SafetensorsWriter writer(path, specs);
  for (const TensorSpec& spec : specs)
    writer.write(spec.name, random_bytes(tensor_bytes(spec, ""), 1));
  writer.commit();
  const SafetensorsReader reader = SafetensorsReader::open(path);
  const auto check = [&]<typename T>(T) {
    for (const Dtype dtype : all_dtypes()) {
      const std::string name(dtype_name(dtype));
      if (dtype == DtypeOf<T>::value) {
        EXPECT_EQ(reader.read_as<T>(name).size(), 8U);
      } else {
        EXPECT_TRUE(holds(error_of([&] { reader.read_as<T>(name); }), "got " + name));
      }
    }
  };
  check(uint8_t{}), check(int8_t{}), check(uint16_t{}), check(int16_t{});
  check(uint32_t{}), check(int32_t{}), check(uint64_t{}), check(int64_t{});
  check(float{}), check(double{}), check(std::complex<float>{});
  for (const Dtype stored : all_dtypes()) {
    for (const Dtype wanted : all_dtypes()) {
      const std::string name(dtype_name(stored));
      std::vector<std::byte> out(reader.at(name).bytes());
      if (stored == wanted) {
        EXPECT_NO_THROW(reader.read_into(name, wanted, out));
      } else {
        EXPECT_THROW(reader.read_into(name, wanted, out), Error);
      }
    }
  }
}

TEST(Safetensors, AccessChecksNamesShapesAndBuffers) {
  const TempFolder folder;
  const std::string path =
      folder.put("m.safetensors",
                 safetensors_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  const SafetensorsReader reader = SafetensorsReader::open(path);
  EXPECT_EQ(reader.find("b"), nullptr);
  EXPECT_EQ(reader.find(""), nullptr);
  EXPECT_TRUE(holds(error_of([&] { reader.at("b"); }), "a tensor named 'b', got none"));
  EXPECT_EQ(reader.require("a", Dtype::kF32, std::vector<int64_t>{2}).begin, 0U);
  EXPECT_EQ(error_of([&] {
              reader.require("a", Dtype::kF32, std::vector<int64_t>{1, 2});
            }),
            path + ": tensor 'a': expected shape [1, 2], got [2]");
  std::vector<std::byte> wrong(7);
  EXPECT_TRUE(
      holds(error_of([&] { reader.read(reader.at("a"), wrong); }), "8 bytes, got one of 7"));
  TensorInfo edited = reader.at("a");
  edited.begin = 1'000'000;
  edited.end = 1'000'008;
  std::vector<std::byte> out(8);
  EXPECT_NO_THROW(reader.read(edited, out));
  edited.name = "forged";
  EXPECT_THROW(reader.read(edited, out), Error);
}

TEST(Safetensors, AcceptsEveryLegalForm) {
  const std::string a = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_EQ(parse_file(safetensors_file("  \t\r\n{" + a + "}  \n", 2)).tensors().size(), 1U);
  EXPECT_EQ(parse_file(safetensors_file("{}", 0)).tensors().size(), 0U);
  EXPECT_EQ(parse_file(safetensors_file(R"({"__metadata__":{}})", 0)).tensors().size(), 0U);
  const auto header = parse_file(safetensors_file(
      R"({ "z" : { "data_offsets" : [ 2 , 4 ] , "shape" : [ 1 , 2 ] , "dtype" : "U8" } ,)" + a +
          R"(,"e":{"shape":[0],"dtype":"F64","data_offsets":[2,2]},"__metadata__":{"k":"v"}})",
      4));
  EXPECT_EQ(header.tensors()[0].name, "a");
  EXPECT_EQ(header.tensors()[1].name, "e");
  EXPECT_EQ(header.tensors()[2].name, "z");
  EXPECT_EQ(header.find("e")->begin, 2U);
  EXPECT_EQ(header.metadata().at("k"), "v");
  // Packed types: 2 x 4 bits and 4 x 6 bits.
  EXPECT_NO_THROW(
      parse_file(safetensors_file(R"({"f":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},)"
                                  R"("g":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[1,4]}})",
                                  4)));
  const std::string long_name(1024, 'n');
  EXPECT_NE(
      parse_file(safetensors_file(
                     "{\"" + long_name + R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1))
          .find(long_name),
      nullptr);
}

TEST(Safetensors, SavingOverAnOpenFileKeepsBoth) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  const auto save = [&](float first) {
    SafetensorsWriter writer(path, {{"a", Dtype::kF32, {2}}});
    writer.write_as<float>("a", std::vector<float>{first, 2});
    writer.commit();
  };
  save(1);
  const SafetensorsReader old_reader = SafetensorsReader::open(path);
  // Replaces the file while a reader has it open, as a converter may.
  SafetensorsWriter writer(path, {{"a", Dtype::kF32, {2}}});
  writer.write("a", old_reader.read_bytes("a"));
  writer.commit();
  EXPECT_EQ(SafetensorsReader::open(path).read_as<float>("a"), (std::vector<float>{1, 2}));
  save(7);
  EXPECT_EQ(old_reader.read_as<float>("a"), (std::vector<float>{1, 2}));
  EXPECT_EQ(SafetensorsReader::open(path).read_as<float>("a"), (std::vector<float>{7, 2}));
}

}  // namespace
}  // namespace diffattn::io
