// SPDX-License-Identifier: Apache-2.0
//
// Tests that a converted model computes the recorded outputs of the published modules, and the same
// function as its source.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "diffattn/convert/convert.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/nn/presets.h"
#include "io/safetensors/sharded.h"
#include "models/tensor_file.h"
#include "tests/io/test_files.h"
#include "tests/ops/golden.h"

namespace diffattn::testing::convert_function {
namespace {

using convert::Format;
using io::testing::TempFolder;
using nlohmann::json;
using torch::Tensor;

void expect_near(const Tensor& actual, const Tensor& expected, double bound,
                 const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const Tensor error = (actual - expected).abs() / expected.abs().clamp_min(1.0);
  EXPECT_LE(error.max().item<double>(), bound) << what;
}

json config_in(const std::string& folder) {
  return json::parse(io::testing::slurp(folder + "/config.json"));
}

void set_config(const std::string& folder, const json& config) {
  std::ofstream(folder + "/config.json") << config.dump(2);
}

std::string made(const TempFolder& folder, const char* name) {
  const std::string path = folder / name;
  std::filesystem::create_directory(path);
  return path;
}

convert::Report run(const std::string& from, const std::string& to, Format format,
                    convert::GqaPairing pairing = convert::GqaPairing::kPaired) {
  convert::Options options;
  options.to = format;
  options.pairing = pairing;
  return convert::convert(from, to, options);
}

nn::ModelConfig model_config(const std::string& attention) {
  nn::ModelConfig config;
  config.attention = attention;
  config.vocab_size = 61;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.initializer_range = 0.2;
  return config;
}

/// Saves a model with random numbers in every parameter.
nn::CausalLM saved_model(const nn::ModelConfig& config, const std::string& folder) {
  torch::manual_seed(5);
  nn::CausalLM model(config);
  const torch::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    if (name.ends_with("norm.weight") || name.ends_with("subln.weight"))
      item.value().uniform_(0.5, 1.5);
    if (name.ends_with("bias")) item.value().normal_(0.0, 0.3);
  }
  model->eval();
  models::save_causal_lm(folder, *model);
  return model;
}

Tensor logits_of(nn::CausalLM& model) {
  const torch::NoGradGuard no_grad;
  nn::DecoderInput input;
  input.ids = torch::arange(22, torch::kInt64).view({2, 11}) * 5 % 61;
  return model->logits(model->forward(input).last);
}

Tensor logits_in(const std::string& folder, torch::ScalarType dtype = torch::kFloat32) {
  nn::CausalLM model = models::load_causal_lm(folder, dtype);
  return logits_of(model);
}

/// Expects the same tensors, bit by bit, in both folders.
void expect_same_weights(const std::string& a, const std::string& b) {
  const auto one = io::ShardedReader::open(a), other = io::ShardedReader::open(b);
  ASSERT_EQ(one.names().size(), other.names().size());
  for (const std::string& name : one.names()) {
    EXPECT_EQ(one.at(name).dtype, other.at(name).dtype) << name;
    EXPECT_EQ(one.at(name).shape, other.at(name).shape) << name;
    EXPECT_EQ(one.read_bytes(name), other.read_bytes(name)) << name;
  }
}

/// Puts the recorded layer into a model with enough layers for its depth.
void save_recorded(const GoldenFile& file, const std::string& folder) {
  nn::ModelConfig config = model_config("microsoft_v1");
  config.hidden_size = file.number("embed_dim");
  config.num_hidden_layers = file.number("depth") + 1;
  config.num_attention_heads = 2 * file.number("num_heads");
  config.num_key_value_heads = 2 * file.number("num_kv_heads");
  config.head_dim = file.number("head_dim");
  const Tensor sin = file.tensors.at("rope.sin").to(torch::kFloat64);
  const Tensor cos = file.tensors.at("rope.cos").to(torch::kFloat64);
  const double angle = std::atan2(sin[1][1].item<double>(), cos[1][1].item<double>());
  config.rope_parameters.rope_theta(std::round(std::pow(angle, -static_cast<double>(sin.size(1)))));
  nn::CausalLM model(config);
  const torch::NoGradGuard no_grad;
  for (auto& item : model->model->layers.back()->self_attn->named_parameters()) {
    item.value().copy_(file.tensors.at("param." + item.key()));
  }
  models::save_causal_lm(folder, *model);
}

TEST(ConvertFunction, RecordedMicrosoftLayersGiveTheirOutputsAsDiffLlama) {
  int compared = 0;
  for (const Golden& golden : find_goldens()) {
    if (golden.kind != GoldenKind::kMicrosoftV1) continue;
    const GoldenFile file = read_golden(golden.path);
    const TempFolder folder;
    save_recorded(file, made(folder, "microsoft"));
    const auto expect = [&](const char* name, Format to, convert::GqaPairing pairing,
                            const char* output) {
      run(folder / "microsoft", folder / name, to, pairing);
      nn::CausalLM model = models::load_causal_lm(folder / name);
      nn::AttentionInput input;
      input.x = file.tensors.at("x");
      const Tensor out = model->model->layers.back()->self_attn->forward(input);
      expect_near(out, file.tensors.at(output), 2e-5, golden.path + ": " + name);
      ++compared;
    };
    expect("diffllama", Format::kDiffLlama, convert::GqaPairing::kPaired, "out");
    if (!file.has("out.naive")) continue;
    expect("expanded", Format::kDiffLlama, convert::GqaPairing::kLegacyNaive, "out.naive");
    if (file.number("num_heads") == file.number("num_kv_heads")) continue;
    expect("within", Format::kMicrosoft, convert::GqaPairing::kLegacyNaive, "out.naive");
  }
  EXPECT_GE(compared, 3);
}

TEST(ConvertFunction, RecordedDiffLlamasGiveTheirLogitsAsMicrosoftAndComeBackBitwise) {
  int compared = 0;
  for (const Golden& golden : find_goldens()) {
    if (golden.kind != GoldenKind::kDiffLlama) continue;
    const GoldenFile file = read_golden(golden.path + "/io.safetensors");
    const TempFolder folder;
    run(golden.path, folder / "microsoft", Format::kMicrosoft);
    nn::CausalLM model = models::load_causal_lm(folder / "microsoft");
    EXPECT_EQ(model->config.attention, "microsoft_v1");
    nn::DecoderInput input;
    input.ids = file.tensors.at("input_ids").slice(0, 0, 1);  // the row without padding
    expect_near(model->logits(model->forward(input).last), file.tensors.at("logits").slice(0, 0, 1),
                2e-5, golden.path);
    run(folder / "microsoft", folder / "back", Format::kDiffLlama);
    expect_same_weights(golden.path, folder / "back");
    ++compared;
  }
  EXPECT_GE(compared, 1);
}

TEST(ConvertFunction, BiasesAndNormWeightsAreTakenAlong) {
  nn::ModelConfig config = model_config("microsoft_v1");
  config.attention_bias = true;
  config.tie_word_embeddings = true;
  const TempFolder folder;
  nn::CausalLM model = saved_model(config, made(folder, "microsoft"));
  const convert::Report report = run(folder / "microsoft", folder / "hf", Format::kDiffLlama);
  expect_near(logits_in(folder / "hf"), logits_of(model), 2e-5, "diffllama");
  for (const convert::TensorReport& item : report.tensors) {
    EXPECT_EQ(item.exact, !item.tensor.name.ends_with("o_proj.weight")) << item.tensor.name;
  }
}

struct LlamaCase {
  const char* name;
  bool bias;
  int64_t kv_heads;
};

TEST(ConvertFunction, ALlamaIsTheSameFunctionAsDiffAndComesBackBitwise) {
  for (const LlamaCase& c : {LlamaCase{"plain", false, 4}, LlamaCase{"grouped, biases", true, 2},
                             LlamaCase{"one kv head", false, 1}}) {
    nn::ModelConfig config = model_config("transformer");
    config.attention_bias = c.bias;
    config.num_key_value_heads = c.kv_heads;
    const TempFolder folder;
    saved_model(config, made(folder, "llama"));
    const Tensor single = logits_in(folder / "llama");
    const Tensor exact = logits_in(folder / "llama", torch::kFloat64);
    for (const Format format : {Format::kMicrosoftV2, Format::kDiffLlama}) {
      const std::string name(convert::format_name(format)), back = name + "_back";
      const std::string what = std::string(c.name) + ": " + name;
      run(folder / "llama", folder / name, format);
      expect_near(logits_in(folder / name), single, 2e-5, what);
      // In float64 the only error is that of the conversion: none, or that of the carrier.
      expect_near(logits_in(folder / name, torch::kFloat64), exact,
                  format == Format::kMicrosoftV2 ? 1e-12 : 2e-7, what + ", float64");
      run(folder / name, folder / back, Format::kLlama);
      expect_same_weights(folder / "llama", folder / back);
      EXPECT_EQ(config_in(folder / "llama"), config_in(folder / back)) << name;
    }
  }
}

TEST(ConvertFunction, LambdaOfAConvertedLlamaIsZeroAndLearns) {
  const TempFolder folder;
  saved_model(model_config("transformer"), made(folder, "llama"));
  run(folder / "llama", folder / "diff", Format::kDiffLlama);
  nn::CausalLM model = models::load_causal_lm(folder / "diff");
  std::vector<nn::AttentionTrace> traces;
  nn::DecoderInput input;
  input.ids = torch::arange(22, torch::kInt64).view({2, 11}) * 5 % 61;
  input.traces = &traces;
  const Tensor logits = model->logits(model->forward(input).last);
  for (const nn::AttentionTrace& trace : traces) {
    EXPECT_LE(trace.calls.front().lambda.abs().max().item<double>(), 1e-6);
  }
  logits.log_softmax(-1).slice(-1, 0, 1).sum().backward();
  for (const auto& item : model->named_parameters()) {
    if (item.key().find("lambda_") == std::string::npos) continue;
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 1e-6) << item.key();
  }
}

TEST(ConvertFunction, OnlyADiffModelThatIsALlamaBecomesOne) {
  const TempFolder folder;
  saved_model(model_config("diffllama"), made(folder, "diff"));
  const auto message =
      io::testing::error_of([&] { run(folder / "diff", folder / "l", Format::kLlama); });
  EXPECT_TRUE(io::testing::holds(message, "layer 0: expected lambda 0")) << message;
  saved_model(model_config("microsoft_v2"), made(folder, "v2"));
  const auto v2 = io::testing::error_of([&] { run(folder / "v2", folder / "l", Format::kLlama); });
  EXPECT_TRUE(io::testing::holds(v2, "lambda_proj.weight': expected zeros")) << v2;
  EXPECT_FALSE(std::filesystem::exists(folder / "l"));
}

TEST(ConvertFunction, MotifIsReadIntoTheFamily) {
  const TempFolder folder;
  nn::CausalLM model = saved_model(model_config("motif_2_6b"), made(folder, "motif"));
  json config = config_in(folder / "motif");
  config.erase("attention");
  config["model_type"] = "Motif";
  config["auto_map"] = {{"AutoModel", "code"}};
  config["attn_rms_norm_eps"] = config["rms_norm_eps"];
  set_config(folder / "motif", config);
  run(folder / "motif", folder / "ours", Format::kDiffattn);
  EXPECT_TRUE(torch::equal(logits_in(folder / "ours"), logits_of(model)));
  EXPECT_FALSE(config_in(folder / "ours").contains("auto_map"));

  config["hidden_act"] = "poly_norm";
  set_config(folder / "motif", config);
  const auto message =
      io::testing::error_of([&] { run(folder / "motif", folder / "no", Format::kDiffattn); });
  EXPECT_TRUE(io::testing::holds(message, "--attention-only")) << message;
}

/// Loads the weights of `layer` from a folder of attention layers.
void load_layer(nn::AttentionLayer& layer, const std::string& folder, int64_t index) {
  const auto source = io::ShardedReader::open(folder);
  const torch::NoGradGuard no_grad;
  for (auto& item : layer.named_parameters()) {
    const std::string name = "model.layers." + std::to_string(index) + ".self_attn." + item.key();
    item.value().copy_(models::read_tensor(source, name));
  }
}

TEST(ConvertFunction, AttentionOfPhi4FlashIsReadUnderItsNames) {
  const TempFolder folder;
  const auto preset = [] {
    return nn::make_preset("phi4_flash",
                           nn::PresetOptions(32, 4).num_key_value_heads(2).layer_index(1));
  };
  const auto layer = preset();
  models::NamedTensors tensors;
  for (const auto& item : layer->named_parameters()) {
    tensors.emplace_back("model.layers.1.attn." + item.key(), item.value().detach());
  }
  tensors.emplace_back("model.layers.0.attn.in_proj.weight", torch::ones({3, 3}));
  tensors.emplace_back("model.layers.3.attn.Wqkv.weight", torch::ones({32, 32}));
  tensors.emplace_back("model.layers.3.attn.inner_cross_attn.lambda_q1", torch::ones({8}));
  tensors.emplace_back("model.embed_tokens.weight", torch::ones({61, 32}));
  models::write_tensor_file(made(folder, "phi") + "/model.safetensors", tensors);
  set_config(folder / "phi", {{"model_type", "phi4flash"},
                              {"hidden_size", 32},
                              {"intermediate_size", 48},
                              {"num_hidden_layers", 4},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 2},
                              {"vocab_size", 61},
                              {"layer_norm_eps", 1e-5}});
  convert::Options options;
  options.to = Format::kDiffattn;
  options.attention_only = true;
  const convert::Report report = convert::convert(folder / "phi", folder / "ours", options);
  EXPECT_EQ(report.tensors.size(), layer->named_parameters().size());
  EXPECT_EQ(report.left.size(), 4u);
  EXPECT_EQ(config_in(folder / "ours").at("attention_layers"), json::array({1}));
  const auto read = preset();
  load_layer(*read, folder / "ours", 1);
  nn::AttentionInput input;
  input.x = torch::randn({2, 7, 32});
  EXPECT_TRUE(torch::equal(read->forward(input), layer->forward(input)));
}

}  // namespace
}  // namespace diffattn::testing::convert_function
