// SPDX-License-Identifier: Apache-2.0
//
// The decoder against recorded results of Hugging Face's DiffLlama, and its cached, padded and
// batched paths against each other.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/nn/cross_entropy.h"
#include "diffattn/nn/decoder.h"
#include "diffattn/nn/generate.h"
#include "diffattn/ops_layers.h"
#include "diffattn/train/adamw.h"
#include "diffattn/train/run_config.h"
#include "diffattn/train/task_data.h"
#include "diffattn/train/task_model.h"
#include "diffattn/train/trainer.h"
#include "tests/io/test_files.h"
#include "tests/ops/golden.h"

namespace diffattn::train::models_test {
namespace {

using io::testing::TempFolder;
using testing::Golden;
using testing::GoldenFile;
using testing::GoldenKind;
using torch::Tensor;

constexpr double kBound = 2e-5;  // absolute up to magnitude 1, relative above

void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const Tensor error = (actual - expected).abs() / expected.abs().clamp_min(1.0);
  EXPECT_LE(error.max().item<double>(), kBound) << what;
}

std::vector<std::string> diffllama_folders() {
  std::vector<std::string> folders;
  for (const Golden& golden : testing::find_goldens()) {
    if (golden.kind == GoldenKind::kDiffLlama) folders.push_back(golden.path);
  }
  return folders;
}

nn::DecoderInput left_padded(const Tensor& ids, const Tensor& mask) {
  nn::DecoderInput input;
  input.ids = ids;
  input.mask.key_starts(mask.size(1) - mask.sum(1));
  return input;
}

/// Builds the mask that the eager attention of transformers adds. Rows of padding get the lowest
/// number everywhere, so their softmax is uniform.
nn::DecoderInput as_recorded(const Tensor& ids, const Tensor& mask) {
  const int64_t n = ids.size(1);
  const Tensor sees =
      torch::ones({n, n}, torch::kBool)
          .tril()
          .logical_and(mask.to(torch::kBool).unsqueeze(1).unsqueeze(1));  // [B, 1, N, N]
  nn::DecoderInput input;
  input.ids = ids;
  input.mask.causal(false).mask(torch::where(sees, 0.0f, std::numeric_limits<float>::lowest()));
  return input;
}

/// Returns the next token of each token, -100 for padding.
Tensor next_labels(const Tensor& ids, const Tensor& mask) {
  const Tensor known = torch::where(mask.to(torch::kBool), ids, -100);
  return torch::constant_pad_nd(known, {0, 1}, -100).slice(1, 1);
}

nn::ModelConfig small_config(const std::string& attention = "diffllama") {
  nn::ModelConfig config;
  config.attention = attention;
  config.vocab_size = 61;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.initializer_range = 0.2;
  return config;
}

TEST(DiffLlamaModel, HiddenStatesLogitsLossAndGradientsAsRecorded) {
  for (const std::string& folder : diffllama_folders()) {
    const GoldenFile recorded = testing::read_golden(folder + "/io.safetensors");
    nn::CausalLM model = models::load_causal_lm(folder);
    const Tensor ids = recorded.tensors.at("input_ids"),
                 mask = recorded.tensors.at("attention_mask");
    nn::DecoderInput input = as_recorded(ids, mask);
    input.keep_hidden = true;
    const nn::DecoderOutput output = model->forward(input);
    for (size_t i = 0; i < output.hidden.size(); ++i) {
      const std::string name = "hidden." + std::to_string(i);
      expect_close(output.hidden[i], recorded.tensors.at(name), folder + ": " + name);
    }
    expect_close(model->logits(output.last), recorded.tensors.at("logits"), folder + ": logits");
    const nn::TokenLoss loss =
        nn::linear_cross_entropy(output.last, model->head_weight(), next_labels(ids, mask));
    expect_close(loss.mean.reshape({1}), recorded.tensors.at("loss"), folder + ": loss");
    loss.mean.backward();
    size_t compared = 0;
    for (const auto& [name, weight] : models::named_weights(*model)) {
      expect_close(weight.grad(), recorded.tensors.at("grad." + name), folder + ": " + name);
      ++compared;
    }
    EXPECT_GT(compared, 10u);
  }
}

TEST(DiffLlamaModel, LeftPaddingByKeyStartsGivesTheRecordedLogitsOfRealTokens) {
  for (const std::string& folder : diffllama_folders()) {
    const GoldenFile recorded = testing::read_golden(folder + "/io.safetensors");
    nn::CausalLM model = models::load_causal_lm(folder);
    const Tensor mask = recorded.tensors.at("attention_mask");
    const Tensor real = mask.to(torch::kBool);
    const auto output = model->forward(left_padded(recorded.tensors.at("input_ids"), mask));
    expect_close(model->logits(output.last).index({real}),
                 recorded.tensors.at("logits").index({real}), folder);
  }
}

TEST(DiffLlamaModel, GreedyTokensAsRecorded) {
  for (const std::string& folder : diffllama_folders()) {
    const GoldenFile recorded = testing::read_golden(folder + "/io.safetensors");
    nn::CausalLM model = models::load_causal_lm(folder);
    const Tensor greedy = recorded.tensors.at("greedy").flatten();
    const std::vector<int64_t> all(greedy.data_ptr<int64_t>(),
                                   greedy.data_ptr<int64_t>() + greedy.numel());
    const std::vector<int64_t> prompt(all.begin(), all.begin() + 8);
    const auto rows =
        nn::generate(*model, {prompt}, nn::SamplingOptions().max_new_tokens(greedy.numel() - 8));
    EXPECT_EQ(rows[0], std::vector<int64_t>(all.begin() + 8, all.end())) << folder;
  }
}

TEST(ModelFolder, RoundTripsBitForBitInOneFileAndInShards) {
  for (const char* attention : {"diffllama", "transformer", "microsoft_v2"}) {
    torch::manual_seed(2);
    const nn::CausalLM model(small_config(attention));
    for (const uint64_t shard_bytes : {models::kDefaultShardBytes, uint64_t{8192}}) {
      const TempFolder folder;
      models::save_causal_lm(folder.path(), *model, shard_bytes);
      EXPECT_EQ(std::filesystem::exists(folder / "model.safetensors.index.json"),
                shard_bytes == 8192);
      const nn::CausalLM loaded = models::load_causal_lm(folder.path());
      const nn::CausalLM other(model->config);  // has other weights before load_weights()
      models::load_weights(folder.path(), *other, model->config);
      const auto weights = models::named_weights(*model), again = models::named_weights(*loaded),
                 copied = models::named_weights(*other);
      ASSERT_EQ(weights.size(), again.size());
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_EQ(weights[i].first, again[i].first);
        EXPECT_TRUE(torch::equal(weights[i].second, again[i].second)) << weights[i].first;
        EXPECT_TRUE(torch::equal(weights[i].second, copied[i].second)) << weights[i].first;
      }
    }
  }
}

TEST(ModelFolder, TiedModelsHaveNoHead) {
  nn::ModelConfig config = small_config();
  config.tie_word_embeddings = true;
  const nn::CausalLM model(config);
  const TempFolder folder;
  models::save_causal_lm(folder.path(), *model);
  const nn::CausalLM loaded = models::load_causal_lm(folder.path());
  EXPECT_TRUE(torch::equal(loaded->head_weight(), model->model->embed_tokens->weight));
  for (const auto& item : model->named_parameters()) EXPECT_NE(item.key(), "lm_head.weight");
}

TEST(ModelFolder, RefusesUnsupportedConfigs) {
  const TempFolder folder;
  models::save_causal_lm(folder.path(), *nn::CausalLM(small_config()));
  const std::string good = io::read_text(folder / "config.json", 1 << 20);
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    folder.put("config.json", text.replace(at, from.size(), to));
    try {
      models::load_causal_lm(folder.path());
    } catch (const io::Error& error) {
      return std::string(error.what());
    } catch (const std::exception& error) {
      return std::string("another error: ") + error.what();
    }
    return std::string("nothing was thrown");
  };
  EXPECT_NE(message("\"silu\"", "\"gelu\"").find("'hidden_act'"), std::string::npos);
  EXPECT_NE(message("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1")
                .find("'attention_dropout'"),
            std::string::npos);
  EXPECT_NE(message("\"diffllama\"", "\"gpt2\"").find("'model_type'"), std::string::npos);
  EXPECT_NE(message("\"hidden_size\": 32", "\"hidden_size\": -1").find("'hidden_size'"),
            std::string::npos);
  EXPECT_NE(message("\"vocab_size\": 61", "\"vocab_size\": 62").find("embed_tokens.weight"),
            std::string::npos);
}

TEST(Decoder, CachedStepsEqualTheWholeForward) {
  for (const char* attention : {"diffllama", "transformer", "microsoft_v1", "microsoft_v2"}) {
    torch::manual_seed(4);
    nn::CausalLM model(small_config(attention));
    model->eval();
    const torch::NoGradGuard no_grad;
    const Tensor ids = torch::randint(61, {2, 17}, torch::kLong);
    nn::DecoderInput whole;
    whole.ids = ids;
    const Tensor expected = model->forward(whole).last;
    nn::KvCaches caches(2);
    int64_t done = 0;
    for (const int64_t length : {9, 1, 1, 4, 2}) {
      nn::DecoderInput part;
      part.ids = ids.slice(1, done, done + length);
      part.caches = &caches;
      const Tensor last = model->forward(part).last;
      const Tensor error = (last - expected.slice(1, done, done + length)).abs().max();
      EXPECT_LT(error.item<double>(), 1e-4) << attention << " after " << done;
      done += length;
    }
  }
}

TEST(Generate, RowsOfABatchEqualTheirOwnRuns) {
  torch::manual_seed(8);
  nn::CausalLM model(small_config());
  model->eval();
  const std::vector<std::vector<int64_t>> prompts{{3, 9, 27, 20, 60}, {5}, {7, 7, 1}};
  const auto options = nn::SamplingOptions().max_new_tokens(12);
  const auto together = nn::generate(*model, prompts, options);
  for (size_t row = 0; row < prompts.size(); ++row) {
    EXPECT_EQ(together[row], nn::generate(*model, {prompts[row]}, options)[0]) << row;
  }
}

TEST(Generate, SamplingObeysItsOptions) {
  torch::manual_seed(9);
  nn::CausalLM model(small_config());
  model->eval();
  const std::vector<std::vector<int64_t>> prompt{{1, 2, 3}};
  const auto greedy = nn::generate(*model, prompt, nn::SamplingOptions().max_new_tokens(10));
  const auto hot = nn::SamplingOptions().max_new_tokens(10).temperature(3.0);
  EXPECT_EQ(nn::generate(*model, prompt, nn::SamplingOptions(hot).top_k(1)), greedy);
  EXPECT_EQ(nn::generate(*model, prompt, nn::SamplingOptions(hot).top_p(1e-9)), greedy);
  EXPECT_EQ(nn::generate(*model, prompt, nn::SamplingOptions(hot).seed(4)),
            nn::generate(*model, prompt, nn::SamplingOptions(hot).seed(4)));
  EXPECT_NE(nn::generate(*model, prompt, nn::SamplingOptions(hot).seed(4)),
            nn::generate(*model, prompt, nn::SamplingOptions(hot).seed(5)));
  const auto stopped = nn::generate(
      *model, prompt, nn::SamplingOptions().max_new_tokens(10).stop_tokens({greedy[0][2]}));
  EXPECT_EQ(stopped[0].back(), greedy[0][2]);
  EXPECT_LE(stopped[0].size(), 3u);
  const auto once = nn::generate(*model, prompt,
                                 nn::SamplingOptions().max_new_tokens(20).repetition_penalty(1e6));
  auto sorted = once[0];
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
}

TEST(Generate, LogitsThatAreNotFiniteAreAnError) {
  for (const double temperature : {0.0, 1.0}) {
    nn::CausalLM model(small_config());
    const torch::NoGradGuard no_grad;
    model->model->embed_tokens->weight[2].fill_(1e30);  // finite weights whose squares overflow
    model->head_weight()[5].fill_(std::numeric_limits<float>::max());
    const auto options = nn::SamplingOptions().max_new_tokens(3).temperature(temperature);
    try {
      nn::generate(*model, {{2}}, options);
      ADD_FAILURE() << "nothing was thrown at temperature " << temperature;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("expected finite logits"), std::string::npos);
    }
  }
}

/// Returns the message of the diffattn::Error that a call throws.
template <class Call>
std::string error_text(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CausalLM, WrongIdsAndTypesAreErrorsOfThisLibrary) {
  nn::CausalLM model(small_config());
  const Tensor ids = torch::tensor({{1, 2, 60}});
  const auto of = [&](const Tensor& given) {
    return error_text([&] { model->forward({.ids = given}); });
  };
  EXPECT_EQ(of(ids), "no error");
  EXPECT_EQ(of(ids + 1),
            "diffattn: argument 'ids': expected token ids in [0, 60], the vocabulary, got 61");
  EXPECT_NE(of(ids - 3).find("got -2"), std::string::npos);
  EXPECT_NE(of(ids.to(torch::kFloat)).find("expected int64 or int32, got Float"),
            std::string::npos);
  EXPECT_NE(of(ids.unsqueeze(0)).find("expected shape [B, N]"), std::string::npos);
  EXPECT_NE(of({}).find("got an undefined tensor"), std::string::npos);
  EXPECT_NE(error_text([&] { model->logits(ids); }).find("logits({.ids = ids})"),
            std::string::npos);
  EXPECT_NE(error_text([&] {
              model->logits(torch::ones({2, 3}));
            }).find("expected shape [..., "),
            std::string::npos);
}

TEST(CausalLM, LogitsInOneCall) {
  torch::manual_seed(3);
  nn::CausalLM model(small_config());
  const torch::NoGradGuard no_grad;
  const Tensor ids = torch::tensor({{1, 2, 3}, {4, 5, 6}});
  const Tensor logits = model->logits({.ids = ids});
  EXPECT_EQ(logits.sizes(), torch::IntArrayRef({2, 3, model->config.vocab_size}));
  EXPECT_TRUE(torch::equal(logits, model->logits(model->forward({.ids = ids}).last)));
}

TEST(ModelFolder, SavingCreatesTheFolderAndTakesWhatLoadingGives) {
  const TempFolder folder;
  const std::string path = folder.path() + "/a/b";
  const nn::CausalLM model(small_config());
  models::save_causal_lm(path, model);
  const nn::CausalLM loaded = models::load_causal_lm(path);
  models::save_causal_lm(path + "/again", loaded);
  EXPECT_TRUE(
      torch::equal(models::load_causal_lm(path + "/again")->head_weight(), model->head_weight()));
  io::write_text(folder.path() + "/file", "");
  EXPECT_THROW(models::save_causal_lm(folder.path() + "/file/model", model), io::Error);
}

TEST(Errors, HaveOneBaseClass) {
  EXPECT_THROW(models::load_causal_lm("/nowhere"), diffattn::Error);
  EXPECT_THROW(RunConfig().set("train.step", "3"), diffattn::Error);
  EXPECT_THROW(nn::generate(*nn::CausalLM(small_config()), {}, {}), diffattn::Error);
  const Tensor x = torch::ones({2, 4});
  EXPECT_THROW(rms_norm(x[0][0], Tensor(), 1e-5), diffattn::Error);
  EXPECT_THROW(swiglu(x, x[0]), diffattn::Error);
  EXPECT_THROW(diffattn::linear(x, x[0]), diffattn::Error);
  EXPECT_THROW(rotate(x, x, x, {}), diffattn::Error);
  EXPECT_THROW(AdamW(*nn::CausalLM(small_config()), {}).gradient_norm(), diffattn::Error);
  RunConfig config;
  config.set_all({{"task", "recall"},
                  {"model.hidden_size", "16"},
                  {"model.num_hidden_layers", "1"},
                  {"model.num_attention_heads", "2"},
                  {"recall.pairs", "2"},
                  {"train.batch_size", "2"}});
  const auto data = open_task_data(config);
  Trainer trainer(new_task_model(config, *data), config);
  EXPECT_THROW(trainer.finish(), diffattn::Error);
  const auto batches = data->train_batches();
  trainer.begin(*batches);
  EXPECT_THROW(trainer.step(*batches), diffattn::Error);
}

TEST(Generate, NamesWhatIsWrong) {
  nn::CausalLM model(small_config());
  EXPECT_THROW(nn::generate(*model, {}, {}), diffattn::Error);
  EXPECT_THROW(nn::generate(*model, {{}}, {}), diffattn::Error);
  EXPECT_THROW(nn::generate(*model, {{61}}, {}), diffattn::Error);
  EXPECT_THROW(nn::generate(*model, {{1}}, nn::SamplingOptions().top_p(0.0)), diffattn::Error);
}

}  // namespace
}  // namespace diffattn::train::models_test
