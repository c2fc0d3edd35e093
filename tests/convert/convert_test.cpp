// SPDX-License-Identifier: Apache-2.0
//
// Tests where every number of a model goes, and that it does not change otherwise.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "tests/convert/folders.h"

namespace diffattn::convert::testing {
namespace {

using io::testing::holds;

const std::string kLayer = "model.layers.1.self_attn.";
constexpr int64_t kHidden = 12, kDim = 4;

/// Returns the source row of each row, which its first element tells.
std::vector<int64_t> source_rows(const std::string& folder, const std::string& name) {
  const auto values = numbers(folder, name);
  std::vector<int64_t> rows;
  for (size_t at = 0; at < values.size(); at += kHidden) {
    rows.push_back(std::llround(values[at]) / kHidden);
    for (size_t i = 0; i < kHidden; ++i) {  // the whole row comes from there
      EXPECT_EQ(values[at + i], values[at] + static_cast<double>(i)) << name;
    }
  }
  return rows;
}

TEST(Convert, MicrosoftRowsStandWhereDiffLlamaHasThem) {
  json config = small_config("diffattn", "microsoft_v1");
  config["num_key_value_heads"] = 6;
  const TempFolder folder;
  convert(put_model(folder, "in", config, weights_of(config)), folder / "out",
          to(Format::kDiffLlama));
  const int64_t heads = 3;
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) {
    const auto rows = source_rows(folder / "out", kLayer + name);
    ASSERT_EQ(rows.size(), 24u);
    const bool turns = name[0] != 'v';
    for (int64_t j = 0; j < heads; ++j) {
      for (int64_t s = 0; s < 2; ++s) {
        for (int64_t i = 0; i < kDim; ++i) {
          // Features (i, i + d / 2) of one layout are (2i, 2i + 1) of the other.
          const int64_t feature = turns ? (i < 2 ? 2 * i : 2 * (i - 2) + 1) : i;
          EXPECT_EQ(rows[static_cast<size_t>((s * heads + j) * kDim + i)],
                    (2 * j + s) * kDim + feature)
              << name << " head " << j << " map " << s << " feature " << i;
        }
      }
    }
  }
}

TEST(Convert, TheHeadNormsWeightGoesIntoTheColumnsOfEachHead) {
  const json config = small_config("diffattn", "microsoft_v1");
  Weights weights = weights_of(config);
  weights.set(kLayer + "subln.weight", {2 * kDim},
              [](int64_t c) { return 0.5 + static_cast<double>(c); });
  const TempFolder folder;
  const Report report =
      convert(put_model(folder, "in", config, weights), folder / "out", to(Format::kDiffLlama));
  const auto out = numbers(folder / "out", kLayer + "o_proj.weight");
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<double>(i) * (0.5 + static_cast<double>(i % 8)));
  }
  EXPECT_EQ(io::ShardedReader::open(folder / "out").find(kLayer + "subln.weight"), nullptr);
  for (const TensorReport& item : report.tensors) {
    EXPECT_EQ(item.exact, item.tensor.name != kLayer + "o_proj.weight") << item.tensor.name;
  }
}

TEST(Convert, LegacyKeysAreRepeatedForTheQueriesThatMetThem) {
  const json config = small_config("diffattn", "microsoft_v1");  // 3 heads share one kv head
  const TempFolder folder;
  Options options = to(Format::kMicrosoft);
  options.pairing = GqaPairing::kLegacyNaive;
  convert(put_model(folder, "in", config, weights_of(config)), folder / "out", options);
  const auto k = source_rows(folder / "out", kLayer + "k_proj.weight");
  const auto v = source_rows(folder / "out", kLayer + "v_proj.weight");
  ASSERT_EQ(k.size(), 24u);
  for (int64_t i = 0; i < 6; ++i) {  // query sub-head i pairs with key sub-head i / 3
    EXPECT_EQ(k[static_cast<size_t>(i * kDim)], i / 3 * kDim) << i;
    EXPECT_EQ(v[static_cast<size_t>(i * kDim)], i % 2 * kDim) << i;
  }
  EXPECT_EQ(config_of(folder / "out").at("num_key_value_heads"), 6);
  EXPECT_EQ(source_rows(folder / "out", kLayer + "q_proj.weight")[5], 5);
}

TEST(Convert, EveryTypeComesBackBitwiseThroughShards) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
    const json config = small_config("diffllama");
    Weights weights = weights_of(config);
    weights.dtype = dtype;
    std::mt19937_64 random(7);
    for (auto& [name, tensor] : weights.tensors) {
      tensor.second = [&random](int64_t i) {
        return i == 3
                   ? std::nan("")
                   : std::ldexp(std::bit_cast<double>((random() >> 12) | 0x3ff0000000000000u) - 1.5,
                                -static_cast<int>(random() % 20));
      };
    }
    const TempFolder folder;
    put_model(folder, "in", config, weights);
    Options small = to(Format::kMicrosoft);
    small.max_shard_bytes = 600;
    const Report report = convert(folder / "in", folder / "microsoft", small);
    EXPECT_GT(report.weights.size(), 5u);
    convert(folder / "microsoft", folder / "back", to(Format::kDiffLlama));
    EXPECT_EQ(io::testing::slurp(folder / "in/model.safetensors"),
              io::testing::slurp(folder / "back/model.safetensors"))
        << io::dtype_name(dtype);
  }
}

TEST(Convert, NumbersAreRoundedOnceToTheNearest) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    const double exact =
        std::ldexp(std::bit_cast<double>((random() >> 12) | 0x3ff0000000000000u), i % 20 - 10);
    // Bits beyond float precision must still decide a tie.
    const double near_tie = 1.0 + 0x1p-8 + (i % 2 == 0 ? 0x1p-40 : -0x1p-40);
    for (const double value : {exact, -exact, near_tie}) {
      for (const auto& [dtype, bits] : {std::pair(Dtype::kBF16, 8), std::pair(Dtype::kF16, 11)}) {
        const double got = rounded(dtype, value);
        const double unit = std::ldexp(1.0, std::ilogb(value) - bits + 1);
        EXPECT_LE(std::abs(got - value), unit / 2) << value;
        EXPECT_EQ(rounded(dtype, got), got);
      }
    }
  }
  EXPECT_EQ(rounded(Dtype::kBF16, 1.0 + 0x1p-8), 1.0);  // a tie rounds to even
  EXPECT_EQ(rounded(Dtype::kBF16, 1.0 + 0x1p-8 + 0x1p-40), 1.0 + 0x1p-7);
  EXPECT_EQ(rounded(Dtype::kF16, 1.0 + 0x1p-11 + 0x1p-40), 1.0 + 0x1p-10);
}

TEST(Convert, ALlamaBecomesDiffInEveryType) {
  json config = small_config("llama");
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    Weights weights = weights_of(config);
    weights.dtype = dtype;
    for (auto& [name, tensor] : weights.tensors) {
      tensor.second = [](int64_t i) { return 0.01 * static_cast<double>(i % 7 - 3); };
    }
    const TempFolder folder;
    put_model(folder, "in", config, weights);
    convert(folder / "in", folder / "diff", to(Format::kDiffLlama));
    const auto bias = numbers(folder / "diff", kLayer + "v_proj.bias");
    double squares = 0.0;
    for (size_t i = 8; i < 12; ++i) squares += bias[i] * bias[i];
    const double lambda_init = 0.8 - 0.6 * std::exp(-0.3);
    const double k = std::log2(std::sqrt(squares / 4 / 2) / (1 - lambda_init));
    EXPECT_NEAR(k, std::round(k), 1e-4) << io::dtype_name(dtype);
    const auto q2 = numbers(folder / "diff", kLayer + "lambda_q2");
    const auto k2 = numbers(folder / "diff", kLayer + "lambda_k2");
    double dot = 0.0;
    for (size_t i = 0; i < q2.size(); ++i) dot += q2[i] * k2[i];
    EXPECT_NEAR(std::exp(dot), 1 + lambda_init, 1e-5) << io::dtype_name(dtype);
    convert(folder / "diff", folder / "back", to(Format::kLlama));
    EXPECT_EQ(io::testing::slurp(folder / "in/model.safetensors"),
              io::testing::slurp(folder / "back/model.safetensors"));
    convert(folder / "in", folder / "again", to(Format::kDiffLlama));  // depends only on the seed
    EXPECT_EQ(io::testing::slurp(folder / "diff/model.safetensors"),
              io::testing::slurp(folder / "again/model.safetensors"));
  }
}

TEST(Convert, NumbersThatLeaveTheRangeOfTheirTypeAreRefused) {
  const json config = small_config("llama");
  Weights weights = weights_of(config);
  weights.dtype = Dtype::kF16;
  weights.set(kLayer + "o_proj.weight", {kHidden, 24}, [](int64_t) { return 40000.0; });
  const TempFolder folder;
  put_model(folder, "in", config, weights);
  const auto message = io::testing::error_of(
      [&] { convert(folder / "in", folder / "out", to(Format::kMicrosoftV2)); });
  EXPECT_TRUE(holds(message, "o_proj.weight")) << message;
  EXPECT_TRUE(holds(message, "range of F16")) << message;
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Convert, ConfigSaysWhatTheResultIs) {
  json config = small_config("diffattn", "microsoft_v1");
  config["auto_map"] = {{"AutoConfig", "x.y"}};
  config["custom"] = {1, 2};
  const TempFolder folder;
  convert(put_model(folder, "in", config, weights_of(config)), folder / "out",
          to(Format::kDiffLlama));
  const json out = config_of(folder / "out");
  EXPECT_EQ(out.at("model_type"), "diffllama");
  EXPECT_EQ(out.at("architectures"), json::array({"DiffLlamaForCausalLM"}));
  EXPECT_EQ(out.at("custom"), config.at("custom"));
  EXPECT_EQ(out.at("rope_theta"), config.at("rope_theta"));
  EXPECT_FALSE(out.contains("auto_map"));
  EXPECT_FALSE(out.contains("attention"));
}

}  // namespace
}  // namespace diffattn::convert::testing
