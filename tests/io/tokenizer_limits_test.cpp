// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/tokenizer.h"
#include "tests/io/allocation_probe.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::allocation_bound;
using testing::AllocationProbe;
using testing::error_of;
using testing::holds;

std::string document(const std::string& vocabulary, const std::string& merges) {
  return "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"
         "\"model\":{"
         "\"vocab\":{" +
         vocabulary + "},\"merges\":[" + merges + "]}}";
}

TEST(TokenizerLimits, MemoryStaysInProportionToTheFile) {
  std::string vocabulary = "\"a\":0";
  for (int i = 1; i < 300'000; ++i) {
    vocabulary += ",\"" + std::to_string(i) + "\":" + std::to_string(i);
  }
  const std::string text = document(vocabulary, "");
  AllocationProbe::reset();
  EXPECT_EQ(Tokenizer::parse(text, "tokenizer.json").vocab_size(), 300'000u);
  EXPECT_LE(AllocationProbe::largest(), allocation_bound(text.size()));
}

TEST(TokenizerLimits, FloodsOfMergesAndHugeIdsAreRefused) {
  std::string merges = "\"a b\"";
  for (int i = 0; i < 800'000; ++i) merges += ",\"a b\"";
  const std::string flood = document("\"a\":0,\"b\":1,\"ab\":2", merges);
  AllocationProbe::reset();
  EXPECT_TRUE(
      holds(error_of([&] { Tokenizer::parse(flood, "tokenizer.json"); }), "merges, got more"));
  EXPECT_LE(AllocationProbe::largest(), allocation_bound(flood.size()));

  const std::string far = document("\"a\":16000000", "");
  AllocationProbe::reset();
  EXPECT_TRUE(
      holds(error_of([&] { Tokenizer::parse(far, "tokenizer.json"); }), "expected an id below"));
  EXPECT_LE(AllocationProbe::largest(), allocation_bound(far.size()));
}

}  // namespace
}  // namespace diffattn::io
