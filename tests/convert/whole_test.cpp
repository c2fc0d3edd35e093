// SPDX-License-Identifier: Apache-2.0
//
// Tests that whole models of Motif-2 and Phi-4-mini-flash move bitwise, under their names.

#include <gtest/gtest.h>

#include <set>

#include "tests/convert/folders.h"

namespace diffattn::convert::testing {
namespace {

using io::testing::error_of;
using io::testing::holds;

std::string recorded(const std::string& name) {
  return std::string(DIFFATTN_TEST_DATA) + "/published/" + name;
}

struct Recorded {
  const char* name;
  Format format;
};
constexpr Recorded kRecorded[] = {{"motif2_a", Format::kMotif},
                                  {"motif2_b", Format::kMotif},
                                  {"phi4flash_a", Format::kPhi4Flash}};

using Bytes = std::vector<std::byte>;

Bytes bytes_in(const io::TensorSource& source, const std::string& name) {
  Bytes data(source.at(name).bytes());
  source.read(source.at(name), data);
  return data;
}

/// Writes the model of a recorded folder to `folder`/in, in `dtype`, with a changed config.json.
std::string put_recorded(const TempFolder& folder, const std::string& name, Dtype dtype,
                         const json& changes = {}, const std::set<std::string>& dropped = {}) {
  const auto source = io::ShardedReader::open(recorded(name) + "/model.safetensors");
  json config = config_of(recorded(name));
  config.update(changes.is_null() ? json::object() : changes);
  Weights weights;
  weights.dtype = dtype;
  for (const std::string& tensor : source.names()) {
    if (dropped.contains(tensor)) continue;
    weights.set(tensor, source.at(tensor).shape, [values = numbers_of(source, tensor)](int64_t i) {
      return values[static_cast<size_t>(i)];
    });
  }
  return put_model(folder, "in", config, weights);
}

void expect_equal_tensors(const std::string& expected, const std::string& actual) {
  const auto left = io::ShardedReader::open(expected), right = io::ShardedReader::open(actual);
  ASSERT_EQ(left.names(), right.names());
  for (const std::string& name : left.names()) {
    EXPECT_EQ(left.at(name).dtype, right.at(name).dtype) << name;
    EXPECT_EQ(left.at(name).shape, right.at(name).shape) << name;
    EXPECT_EQ(bytes_in(left, name), bytes_in(right, name)) << name;
  }
}

TEST(ConvertWhole, EveryByteAndKeyComesThroughShardsAndBack) {
  for (const Recorded& model : kRecorded) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const TempFolder folder;
      const std::string in =
          put_recorded(folder, model.name, dtype, {{"auto_map", {{"AutoModel", "code"}}}});
      Options sharded = to(model.format);
      sharded.max_shard_bytes = 20000;
      const Report report = convert(in, folder / "shards", sharded);
      EXPECT_GT(report.weights.size(), 3u);
      EXPECT_TRUE(report.left.empty());
      for (const TensorReport& item : report.tensors) {
        EXPECT_TRUE(item.exact && item.source == item.tensor.name) << item.tensor.name;
      }
      convert(folder / "shards", folder / "back", to(model.format));
      expect_equal_tensors(in, folder / "shards");
      expect_equal_tensors(in, folder / "back");
      json config = config_of(in);
      config.erase("auto_map");
      EXPECT_EQ(config_of(folder / "back"), config);
      ASSERT_EQ(report.notes.size(), 1u);
      EXPECT_TRUE(holds(report.notes[0], "auto_map"));
    }
  }
}

TEST(ConvertWhole, MotifMayHaveBiases) {
  const TempFolder folder;
  json config = config_of(recorded("motif2_b"));
  config["use_bias"] = true;
  const auto source = io::ShardedReader::open(recorded("motif2_b") + "/model.safetensors");
  Weights weights;
  for (const std::string& name : source.names()) {
    weights.set(name, source.at(name).shape, position);
    const size_t end = name.rfind("_proj.weight");
    if (end == std::string::npos) continue;
    weights.set(name.substr(0, end) + "_proj.bias", {source.at(name).shape[0]}, position);
  }
  const std::string in = put_model(folder, "in", config, weights);
  convert(in, folder / "out", to(Format::kMotif));
  expect_equal_tensors(in, folder / "out");
  config["use_bias"] = false;
  folder.put("in/config.json", config.dump());
  EXPECT_TRUE(holds(error_of([&] { convert(in, folder / "no", to(Format::kMotif)); }), "bias"));
}

/// Returns the message with which a changed folder is refused.
std::string refused_whole(const std::string& name, const json& changes, Options options,
                          const std::set<std::string>& dropped = {}) {
  const TempFolder folder;
  const std::string in = put_recorded(folder, name, Dtype::kF32, changes, dropped);
  const std::string message = error_of([&] { convert(in, folder / "out", options); });
  EXPECT_EQ(folder.entries(), 1u) << "an incomplete folder remains";
  return message;
}

TEST(ConvertWhole, ContradictionsAreRefused) {
  const Options motif = to(Format::kMotif), phi = to(Format::kPhi4Flash);
  const auto says = [](const std::string& message, const std::string& part) {
    EXPECT_TRUE(holds(message, part)) << message;
  };
  says(refused_whole("phi4flash_a", {{"num_hidden_layers", 6}}, phi), "a multiple of 4");
  says(refused_whole("phi4flash_a", {{"num_hidden_layers", 12}}, phi), "expected");
  says(refused_whole("phi4flash_a", {{"num_hidden_layers", 4}}, phi), "model.layers.");
  says(refused_whole("phi4flash_a", {{"mamba_d_state", 5}}, phi), "x_proj");
  says(refused_whole("phi4flash_a", {{"mamba_dt_rank", "many"}}, phi), "mamba_dt_rank");
  says(refused_whole("phi4flash_a", {{"hidden_act", "gelu"}}, phi), "hidden_act");
  says(refused_whole("phi4flash_a", {}, phi, {"model.layers.2.attn.A_log"}), "A_log");
  says(refused_whole("phi4flash_a", {}, motif), "from phi4_flash to diffattn, phi4_flash");
  says(refused_whole("motif2_b", {{"num_noise_heads", 3}}, motif), "noise");
  says(refused_whole("motif2_b", {{"num_noise_heads", 10}}, motif), "noise heads");
  says(refused_whole("motif2_b", {{"hidden_act", "silu"}}, motif), "poly_norm");
  says(refused_whole("motif2_b", {{"model_type", "phi4flash"}}, phi), "kv heads");
  says(refused_whole("motif2_b", {{"attention_cls", "gdla"}}, motif), "attention_cls");
  says(refused_whole("motif2_b", {}, motif, {"model.layers.0.mlp.act_fn.bias"}), "act_fn.bias");
  Options attention = motif;
  attention.attention_only = true;
  says(refused_whole("motif2_b", {}, attention), "--to diffattn");
  says(refused_whole("motif2_b", {}, to(Format::kDiffattn)), "--to motif copies the whole model");
}

TEST(ConvertWhole, ModelTypesIgnoreCase) {
  for (const Recorded& model : kRecorded) {
    for (const char* type : {"MOTIF", "Phi4Flash"}) {
      if ((model.format == Format::kMotif) != (type[0] == 'M')) continue;
      const TempFolder folder;
      const std::string in = put_recorded(folder, model.name, Dtype::kF32, {{"model_type", type}});
      convert(in, folder / "out", to(model.format));
      EXPECT_EQ(config_of(folder / "out")["model_type"], type);
    }
  }
}

// The folder of attention layers has no biases, so they would be lost.
TEST(ConvertWhole, AttentionLayersWithBiasesAreRefused) {
  Options options = to(Format::kDiffattn);
  options.attention_only = true;
  for (const char* key : {"use_bias", "attention_bias", "qkv_bias"}) {
    const std::string message = refused_whole("motif2_b", {{key, true}}, options);
    EXPECT_TRUE(holds(message, key) && holds(message, "expected false")) << message;
  }
}

TEST(ConvertWhole, AMissingShardIsNamed) {
  const TempFolder folder;
  Options sharded = to(Format::kPhi4Flash);
  sharded.max_shard_bytes = 20000;
  const Report report =
      convert(put_recorded(folder, "phi4flash_a", Dtype::kBF16), folder / "shards", sharded);
  std::filesystem::remove(folder / "shards/" + report.weights[1]);
  const std::string message =
      error_of([&] { convert(folder / "shards", folder / "out", to(Format::kPhi4Flash)); });
  EXPECT_TRUE(holds(message, report.weights[1])) << message;
}

}  // namespace
}  // namespace diffattn::convert::testing
