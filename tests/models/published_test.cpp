// SPDX-License-Identifier: Apache-2.0
//
// Motif-2 and Phi-4-mini-flash against recordings of their own code, and their cached, padded and
// packed paths against the full pass: on every CPU backend of this machine and on its GPU.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "diffattn/infer/batcher.h"
#include "diffattn/infer/generator.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/nn/cross_entropy.h"
#include "diffattn/nn/generate.h"
#include "io/safetensors/sharded.h"
#include "models/tensor_file.h"
#include "nn/models/layer_kinds.h"
#include "nn/parts/pre_norm_layer.h"
#include "tests/io/test_files.h"
#include "tests/ops/backends.h"
#include "tests/ops/golden.h"

namespace diffattn::models_test {
namespace {

using io::testing::TempFolder;
using testing::GoldenFile;
using torch::Tensor;

constexpr double kHidden = 1e-4, kGradient = 2e-4;  // absolute; of a tensor's largest entry
constexpr double kDecoding = 5e-5;
/// Of the largest logit: how far bfloat16 may move the difference of two logits.
constexpr double kNarrowGap = 0.02;

std::string folder_of(const std::string& name) {
  return std::string(DIFFATTN_TEST_DATA) + "/published/" + name;
}

double distance(const Tensor& a, const Tensor& b) {
  return (a.cpu() - b.cpu()).abs().max().item<double>();
}

/// A recording, and the input of its forward pass on a device.
struct Recording {
  explicit Recording(const std::string& name, torch::Device device = torch::kCPU)
      : folder(folder_of(name)), file(testing::read_golden(folder + "/io.safetensors")) {
    const Tensor mask = at("attention_mask");
    real = mask.to(torch::kBool);
    const Tensor starts = mask.size(1) - mask.sum(1);
    input.ids = at("input_ids").to(device);
    input.mask.key_starts(starts.to(device));
    input.positions = (mask.cumsum(1) - 1).clamp_min(0).to(device);
  }
  const Tensor& at(const std::string& name) const { return file.tensors.at(name); }

  std::string folder;
  GoldenFile file;
  nn::DecoderInput input;
  Tensor real;
};

std::vector<std::vector<int64_t>> rows_of(const Tensor& ids) {
  std::vector<std::vector<int64_t>> rows;
  for (int64_t i = 0; i < ids.size(0); ++i) {
    const Tensor row = ids[i].contiguous();
    rows.emplace_back(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel());
  }
  return rows;
}

struct Case {
  std::string model;
  testing::Place place;
};

/// A model at a place.
class Published : public testing::AtPlace, public ::testing::WithParamInterface<Case> {
 protected:
  const testing::Place& place() const override { return GetParam().place; }
  Recording recording() const { return Recording(GetParam().model, place().device()); }
  nn::CausalLM load(torch::ScalarType dtype = torch::kFloat32) const {
    nn::CausalLM model = models::load_causal_lm(folder_of(GetParam().model), dtype);
    model->to(place().device());
    return model;
  }
};

std::vector<Case> cases_of(const std::vector<std::string>& models) {
  std::vector<Case> cases;
  for (const std::string& model : models) {
    for (const testing::Place& place : testing::places()) cases.push_back({model, place});
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.model + "_" + info.param.place.name;
}

TEST_P(Published, HiddenStatesLogitsLossAndGradientsAsRecorded) {
  Recording recorded = recording();
  nn::CausalLM model = load();
  recorded.input.keep_hidden = true;
  const nn::DecoderOutput output = model->forward(recorded.input);
  const auto expect = [&](const Tensor& actual, const std::string& name) {
    EXPECT_LE(
        distance(actual.cpu().index({recorded.real}), recorded.at(name).index({recorded.real})),
        kHidden)
        << name;
  };
  expect(output.hidden[0], "embed");
  for (size_t i = 1; i + 1 < output.hidden.size(); ++i) {
    expect(output.hidden[i], "hidden." + std::to_string(i - 1));
  }
  expect(output.last, "final_norm");
  expect(model->logits(output.last), "logits");
  const Tensor labels = torch::constant_pad_nd(recorded.at("labels"), {0, 1}, -100).slice(1, 1);
  const auto loss =
      nn::linear_cross_entropy(output.last, model->head_weight(), labels.to(place().device()));
  EXPECT_NEAR(loss.mean.item<double>(), recorded.at("loss").item<double>(), 1e-5);
  loss.mean.backward();
  size_t compared = 0;
  for (const auto& [name, weight] : models::named_weights(*model)) {
    const Tensor expected = recorded.at("grad." + name);
    ASSERT_TRUE(weight.grad().defined()) << name;
    EXPECT_LE(distance(weight.grad(), expected), kGradient * expected.abs().max().item<double>())
        << name;
    ++compared;
  }
  EXPECT_GT(compared, 30u);
}

TEST_P(Published, GreedyTokensAsRecorded) {
  const Recording recorded = recording();
  nn::CausalLM model = load();
  const auto prompts = rows_of(recorded.at("greedy.prompt"));
  const auto expected = rows_of(recorded.at("greedy.tokens"));
  const auto options =
      nn::SamplingOptions().max_new_tokens(static_cast<int64_t>(expected[0].size()));
  EXPECT_EQ(nn::generate(*model, prompts, options), expected);
  infer::Generator generator(model, {});
  EXPECT_EQ(generator.generate(prompts, options), expected);
  EXPECT_EQ(nn::generate(*model, {prompts[1]}, options)[0], expected[1]);
}

TEST_P(Published, BFloat16GivesTheRecordedTokensUntilTwoAreAlmostAsLikely) {
  const torch::NoGradGuard no_grad;
  const Recording recorded = recording();
  const auto prompts = rows_of(recorded.at("greedy.prompt"));
  const auto expected = rows_of(recorded.at("greedy.tokens"));
  const auto options =
      nn::SamplingOptions().max_new_tokens(static_cast<int64_t>(expected[0].size()));
  nn::CausalLM model = load(torch::kBFloat16), wide = load();
  infer::Generator generator(model, {});
  size_t compared = 0;
  for (const auto& tokens :
       {nn::generate(*model, prompts, options), generator.generate(prompts, options)}) {
    for (size_t row = 0; row < prompts.size(); ++row) {
      std::vector<int64_t> text = prompts[row];
      for (size_t i = 0; i < expected[row].size(); ++i, ++compared) {
        const int64_t right = expected[row][i], got = i < tokens[row].size() ? tokens[row][i] : -1;
        if (got != right) {
          ASSERT_GE(got, 0) << "row " << row << " ends after " << i << " tokens";
          const Tensor ids = torch::tensor(text).unsqueeze(0).to(place().device());
          const Tensor logits = wide->logits({.ids = ids})[0][-1].cpu();
          const double gap = (logits[right] - logits[got]).item<double>();
          EXPECT_LE(gap, kNarrowGap * logits.abs().max().item<double>())
              << "row " << row << ", token " << i;
          break;
        }
        text.push_back(right);
      }
    }
  }
  EXPECT_GE(compared, 4u);
}

TEST_P(Published, RowsOfABatchHaveTheRecordedTokensWhateverThePartsOfTheirPrompts) {
  const Recording recorded = recording();
  nn::CausalLM model = load();
  const auto prompts = rows_of(recorded.at("greedy.prompt"));
  const auto expected = rows_of(recorded.at("greedy.tokens"));
  const auto count = static_cast<int64_t>(expected[0].size());
  for (const int64_t part : {0, 1, 3}) {  // tokens of prompts in a step; 0 is all
    infer::Batcher batcher(model, infer::GeneratorOptions().prefill_tokens(part));
    // Motif's layers have fused steps; those of Phi-4-mini-flash do not.
    EXPECT_EQ(batcher.uses_steps(), std::string(GetParam().model).starts_with("motif"))
        << batcher.reason();
    std::vector<std::vector<int64_t>> tokens(prompts.size());
    for (const auto& prompt : prompts) {
      batcher.submit({prompt, nn::SamplingOptions().max_new_tokens(count)});
    }
    while (!batcher.idle()) {
      for (const infer::NewToken& token : batcher.step()) {
        tokens[token.request].push_back(token.token);
      }
    }
    EXPECT_EQ(tokens, expected) << part;
  }
}

TEST_P(Published, DecodingFromPromptsOfEveryLengthEqualsTheFullPass) {
  const torch::NoGradGuard no_grad;
  nn::CausalLM model = load();
  // The window of phi4flash_a has 8 keys: prompts are shorter, equal and up to three windows, and
  // more than a window of tokens follows.
  const int64_t tokens = 34, after = 10;
  const Tensor ids =
      torch::randint(model->config.vocab_size, {2, tokens}, torch::kLong).to(place().device());
  const Tensor full = model->logits(nn::DecoderInput{.ids = ids});
  for (const int64_t prompt : {1, 2, 5, 7, 8, 9, 15, 16, 17, 24}) {
    for (const bool last_only : {false, true}) {
      nn::KvCaches caches(model->model->layers.size());
      nn::DecoderInput input{.ids = ids.narrow(1, 0, prompt), .caches = &caches};
      input.last_only = last_only;
      for (int64_t t = prompt; t <= prompt + after; ++t) {
        const Tensor logits = model->logits(model->forward(input).last);
        ASSERT_EQ(logits.size(1), last_only || t > prompt ? 1 : prompt);
        EXPECT_LE(distance(logits.select(1, -1), full.select(1, t - 1)), kDecoding)
            << "prompt " << prompt << ", token " << t;
        if (t < tokens) input.ids = ids.narrow(1, t, 1);
      }
    }
  }
}

const std::vector<std::string> kModels{"motif2_a", "motif2_b", "phi4flash_a"};

INSTANTIATE_TEST_SUITE_P(Everywhere, Published, ::testing::ValuesIn(cases_of(kModels)), case_name);

/// The model with Mamba layers, at a place.
class PublishedMamba : public Published {};

TEST_P(PublishedMamba, StatesAndMemoryAsRecorded) {
  const torch::NoGradGuard no_grad;
  const Recording recorded = recording();
  nn::CausalLM model = load();
  const auto kinds = nn::layer_kinds(model->config);
  nn::KvCaches caches(kinds.size());
  model->forward({.ids = recorded.input.ids.slice(0, 0, 1), .caches = &caches});
  size_t compared = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::string name = "state." + std::to_string(i);
    if (!recorded.file.has(name + ".ssm")) continue;
    EXPECT_LE(distance(caches[i].state(1), recorded.at(name + ".ssm")), kHidden) << name;
    const Tensor conv = recorded.at(name + ".conv").transpose(1, 2).slice(1, 1);  // oldest first
    EXPECT_LE(distance(caches[i].state(0), conv), kHidden) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 3u);
  const auto& layer = dynamic_cast<const nn::PreNormLayerImpl&>(*model->model->layers[4]);
  nn::SharedTensors shared;
  nn::AttentionInput input{.mask = recorded.input.mask};
  input.x = layer.input_layernorm.module()->as<torch::nn::LayerNorm>()->forward(
      recorded.at("hidden.3").to(place().device()));
  input.shared = &shared;
  layer.self_attn->forward(input);
  EXPECT_LE(distance(shared.memory.cpu().index({recorded.real}),
                     recorded.at("memory").index({recorded.real})),
            kHidden);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, PublishedMamba, ::testing::ValuesIn(cases_of({"phi4flash_a"})),
                         case_name);

/// A layer that notes how many rows of a sequence it saw last.
class RowsSeen : public nn::AttentionLayer {
 public:
  explicit RowsSeen(std::shared_ptr<nn::AttentionLayer> layer) : layer_(std::move(layer)) {}
  Tensor forward(const nn::AttentionInput& input, nn::AttentionTrace* trace) override {
    rows = input.x.size(1);
    return layer_->forward(input, trace);
  }
  std::optional<nn::RotaryTable> angles(const nn::AttentionInput& input) override {
    return layer_->angles(input);
  }
  bool keeps_cache() const override { return layer_->keeps_cache(); }
  std::optional<int64_t> needed_rows() const override { return layer_->needed_rows(); }
  bool shares_tensors() const override { return layer_->shares_tensors(); }

  int64_t rows = 0;

 private:
  std::shared_ptr<nn::AttentionLayer> layer_;
};

TEST(PublishedModels, LayersBehindTheLastCacheSeeOnlyTheLastToken) {
  const torch::NoGradGuard no_grad;
  constexpr int64_t kTokens = 11;
  for (const std::string& name : kModels) {
    nn::CausalLM model = models::load_causal_lm(folder_of(name));
    const auto kinds = nn::layer_kinds(model->config);
    const auto owner = std::find(kinds.begin(), kinds.end(), nn::LayerKind::kOwnerAttention);
    std::vector<std::shared_ptr<RowsSeen>> seen;
    for (const auto& layer : model->model->layers) {
      seen.push_back(std::make_shared<RowsSeen>(layer->self_attn));
      layer->self_attn = seen.back();
    }
    for (const bool last_only : {false, true}) {
      nn::KvCaches caches(kinds.size());
      nn::DecoderInput input{.ids = torch::arange(kTokens).unsqueeze(0), .caches = &caches};
      input.last_only = last_only;
      model->forward(input);
      for (size_t i = 0; i < seen.size(); ++i) {
        const bool behind = owner != kinds.end() && i > static_cast<size_t>(owner - kinds.begin());
        EXPECT_EQ(seen[i]->rows, last_only && behind ? 1 : kTokens) << name << ", layer " << i;
      }
    }
  }
}

TEST(PublishedModels, CachesKeepNoMoreThanTheirWindows) {
  const torch::NoGradGuard no_grad;
  nn::CausalLM model = models::load_causal_lm(folder_of("phi4flash_a"));
  const auto kinds = nn::layer_kinds(model->config);
  nn::KvCaches caches(kinds.size());
  const Tensor ids = torch::randint(model->config.vocab_size, {1, 40}, torch::kLong);
  model->forward({.ids = ids, .caches = &caches});
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto rows = [&] {
      return caches[i].filled(0).defined() ? caches[i].filled(0).size(1) : 0;
    };
    switch (kinds[i]) {
      case nn::LayerKind::kWindowAttention: EXPECT_EQ(rows(), 7); break;
      case nn::LayerKind::kOwnerAttention: EXPECT_EQ(rows(), 40); break;
      default: EXPECT_EQ(rows(), 0); break;
    }
    const bool has_state = caches[i].state(0).defined();
    EXPECT_EQ(has_state,
              kinds[i] == nn::LayerKind::kMamba || kinds[i] == nn::LayerKind::kMambaMemory);
  }
}

TEST(PublishedModels, PackedSequencesEqualSingleOnes) {
  const torch::NoGradGuard no_grad;
  for (const std::string& name : kModels) {
    nn::CausalLM model = models::load_causal_lm(folder_of(name));
    const std::vector<int32_t> offsets{0, 1, 13, 13, 30};
    const Tensor ids = torch::randint(model->config.vocab_size, {30}, torch::kLong);
    nn::DecoderInput packed{.ids = ids};
    packed.mask.cu_seqlens_q(torch::tensor(offsets));
    const Tensor together = model->logits(packed);
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      const Tensor part = ids.slice(0, offsets[s], offsets[s + 1]);
      if (part.numel() == 0) continue;
      const Tensor alone = model->logits(nn::DecoderInput{.ids = part.unsqueeze(0)}).squeeze(0);
      EXPECT_LE(distance(together.slice(0, offsets[s], offsets[s + 1]), alone), kDecoding) << name;
    }
  }
}

TEST(PublishedModels, ActivationCheckpointingKeepsGradients) {
  for (const std::string& name : kModels) {
    nn::CausalLM model = models::load_causal_lm(folder_of(name));
    const Tensor ids = torch::randint(model->config.vocab_size, {2, 20}, torch::kLong);
    const auto gradients = [&](bool checkpointed) {
      model->zero_grad();
      model->model->checkpoint_activations(checkpointed);
      nn::linear_cross_entropy(model->forward({.ids = ids}).last, model->head_weight(), ids)
          .mean.backward();
      std::vector<Tensor> all;
      for (const auto& [key, weight] : models::named_weights(*model)) {
        all.push_back(weight.grad().clone());
      }
      return all;
    };
    const auto expected = gradients(false), actual = gradients(true);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(distance(actual[i], expected[i]),
                1e-5 * (1.0 + expected[i].abs().max().item<double>()))
          << name;
    }
  }
}

TEST(PublishedModels, FoldersRoundTripBitForBit) {
  for (const std::string& name : kModels) {
    const TempFolder folder;
    nn::CausalLM model = models::load_causal_lm(folder_of(name));
    models::save_causal_lm(folder.path(), model, /*max_shard_bytes=*/100000);
    nn::CausalLM again = models::load_causal_lm(folder.path());
    const auto before = models::named_weights(*model), after = models::named_weights(*again);
    ASSERT_EQ(before.size(), after.size());
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(before[i].first, after[i].first);
      EXPECT_TRUE(torch::equal(before[i].second, after[i].second)) << before[i].first;
    }
    EXPECT_EQ(models::model_config_text(model->config, torch::kFloat32),
              models::model_config_text(again->config, torch::kFloat32));
    const Tensor ids = torch::arange(12).unsqueeze(0);
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(model->logits({.ids = ids}), again->logits({.ids = ids})));
  }
}

/// Returns Linux's flags of the memory at an address, such as "rd wr hg".
std::string flags_of_memory(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream range(line); range >> std::hex >> begin >> dash >> end && dash == '-') {
      here = begin <= wanted && wanted < end;
    } else if (here && line.starts_with("VmFlags:")) {
      return line;
    }
  }
  return "";
}

TEST(PublishedModels, LargeWeightsAskForHugePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
    GTEST_SKIP() << "skipped: this Linux has no huge pages";
  }
  const TempFolder folder;
  const Tensor weights = torch::rand({1 << 12, 1 << 11});  // 32 MB
  models::write_tensor_file(folder / "model.safetensors", {{"x", weights}});
  const auto file = io::ShardedReader::open(folder / "model.safetensors");
  const Tensor read = models::read_tensor(file, "x");
  EXPECT_TRUE(torch::equal(read, weights));
  const auto* middle = static_cast<const char*>(read.const_data_ptr()) + read.nbytes() / 2;
  EXPECT_NE(flags_of_memory(middle).find(" hg"), std::string::npos) << flags_of_memory(middle);
}

TEST(PublishedModels, BFloat16IsReadAsItIs) {
  for (const std::string& name : kModels) {
    const TempFolder folder;
    nn::CausalLM model = models::load_causal_lm(folder_of(name), torch::kBFloat16);
    for (const auto& [key, weight] : models::named_weights(*model)) {
      ASSERT_EQ(weight.scalar_type(), torch::kBFloat16) << key;
    }
    models::save_causal_lm(folder.path(), model);
    nn::CausalLM again = models::load_causal_lm(folder.path(), torch::kBFloat16);
    const torch::NoGradGuard no_grad;
    const Tensor ids = torch::arange(20).unsqueeze(0);
    EXPECT_TRUE(torch::equal(model->logits({.ids = ids}), again->logits({.ids = ids}))) << name;
    nn::CausalLM wide = models::load_causal_lm(folder.path());
    const Tensor exact = wide->logits({.ids = ids});
    EXPECT_LT(distance(model->logits({.ids = ids}).to(torch::kFloat32), exact),
              0.05 * exact.abs().max().item<double>())
        << name;
  }
}

}  // namespace
}  // namespace diffattn::models_test
