// SPDX-License-Identifier: Apache-2.0
//
// Encoder and encoder-decoder: attention masks, cached against uncached passes, model folders.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>

#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/nn/cross_entropy.h"
#include "diffattn/nn/encoder.h"
#include "diffattn/nn/encoder_decoder.h"
#include "diffattn/nn/multihead_diff_attention.h"
#include "diffattn/nn/presets.h"
#include "tests/io/test_files.h"

namespace diffattn::train::encoders_test {
namespace {

using io::testing::TempFolder;
using torch::Tensor;

nn::ModelConfig tiny_config(nn::ModelKind kind, const std::string& attention) {
  nn::ModelConfig config;
  config.kind = kind;
  config.attention = attention;
  config.vocab_size = 53;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_encoder_layers = kind == nn::ModelKind::kEncoderDecoder ? 3 : 0;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 8;
  config.initializer_range = 0.2;
  return config;
}

double distance(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a - b).abs().max().item<double>();
}

nn::ModelInput padded_right(const Tensor& ids, const std::vector<int64_t>& lengths) {
  nn::ModelInput input;
  input.ids = ids;
  input.mask.key_lengths(torch::tensor(lengths, torch::kLong));
  return input;
}

TEST(Encoder, EveryTokenSeesBothSidesAndNoPadding) {
  for (const std::string& attention : nn::preset_names()) {
    torch::manual_seed(3);
    nn::Encoder model(tiny_config(nn::ModelKind::kEncoder, attention));
    const torch::NoGradGuard no_grad;
    const Tensor ids = torch::randint(53, {2, 11}, torch::kLong);
    Tensor other = ids.clone();
    other[0][10] = (other[0][10] + 1) % 53;
    const auto run = [&](const Tensor& tokens) {
      nn::ModelInput input;
      input.ids = tokens;
      return model->forward(input).last;
    };
    EXPECT_GT(distance(run(ids)[0][0], run(other)[0][0]), 1e-4) << attention;
    const Tensor batch = model->forward(padded_right(ids, {7, 11})).last;
    EXPECT_LT(distance(batch[0].slice(0, 0, 7), run(ids.slice(0, 0, 1).slice(1, 0, 7))[0]), 1e-4)
        << attention;
    EXPECT_LT(distance(batch[1], run(ids.slice(0, 1))[0]), 1e-4) << attention;
  }
}

TEST(Encoder, PackedSequencesEqualTheirOwnRuns) {
  torch::manual_seed(4);
  nn::Encoder model(tiny_config(nn::ModelKind::kEncoder, "diffllama"));
  const torch::NoGradGuard no_grad;
  const Tensor ids = torch::randint(53, {12}, torch::kLong);
  nn::ModelInput packed, alone;
  packed.ids = ids;
  packed.mask.cu_seqlens_q(torch::tensor({0, 5, 12}, torch::kInt));
  alone.ids = ids.slice(0, 5).unsqueeze(0);
  EXPECT_LT(distance(model->forward(packed).last.slice(0, 5), model->forward(alone).last[0]), 1e-5);
}

/// Computes norm((softmax(q1 k1) - lambda softmax(q2 k2)) v) over the context in plain tensor
/// algebra, in the layout of Hugging Face: map 1 has the first half of the heads.
Tensor cross_by_hand(const nn::AttentionLayer& layer, const Tensor& x, const Tensor& context,
                     double lambda_init) {
  const auto weights = layer.named_parameters();
  const auto heads = [&](const char* name, const Tensor& rows) {  // [B, 4, N, 8]
    return rows.matmul(weights[name].t()).unflatten(-1, {4, 8}).transpose(1, 2);
  };
  const Tensor q = heads("q_proj.weight", x), k = heads("k_proj.weight", context),
               v = heads("v_proj.weight", context);
  const Tensor maps = (q.matmul(k.transpose(-1, -2)) / std::sqrt(8.0)).softmax(-1);
  const Tensor wide = torch::cat({v.slice(1, 0, 2), v.slice(1, 2, 4)}, -1);
  const auto e = [&](const char* a, const char* b) {
    return (weights[a] * weights[b]).sum().exp();
  };
  const Tensor lambda = e("lambda_q1", "lambda_k1") - e("lambda_q2", "lambda_k2") + lambda_init;
  const Tensor o = (maps.slice(1, 0, 2) - lambda * maps.slice(1, 2, 4)).matmul(wide);
  const Tensor normed = o * torch::rsqrt(o.square().mean(-1, true) + 1e-5) * (1.0 - lambda_init);
  return normed.transpose(1, 2).flatten(2).matmul(weights["o_proj.weight"].t());
}

TEST(EncoderDecoder, CrossAttentionIsTheDifferenceOfTwoMapsOverTheSource) {
  torch::manual_seed(5);
  nn::EncoderDecoder model(tiny_config(nn::ModelKind::kEncoderDecoder, "diffllama"));
  const torch::NoGradGuard no_grad;
  const Tensor x = torch::randn({2, 3, 32}), context = torch::randn({2, 9, 32});
  for (size_t i = 0; i < 2; ++i) {
    nn::AttentionLayer& layer = *model->decoder->layers[i]->cross_attn;
    nn::AttentionInput input{.x = x, .context = context};
    const double init = 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(i));
    EXPECT_LT(distance(layer.forward(input), cross_by_hand(layer, x, context, init)), 2e-5) << i;
  }
}

TEST(EncoderDecoder, WritingStepByStepEqualsTheWholePassForAllLengths) {
  for (const std::string& attention : nn::preset_names()) {
    torch::manual_seed(6);
    nn::EncoderDecoder model(tiny_config(nn::ModelKind::kEncoderDecoder, attention));
    model->eval();
    const torch::NoGradGuard no_grad;
    const Tensor sources = torch::randint(53, {3, 9}, torch::kLong);
    const nn::ModelInput source = padded_right(sources, {9, 4, 6});
    const Tensor ids = torch::randint(53, {3, 8}, torch::kLong);
    nn::ModelInput whole;
    whole.ids = ids;
    const Tensor expected = model->decode(whole, model->encode(source)).last;
    nn::WritingState state = model->begin(source);
    int64_t done = 0;
    for (const int64_t count : {3, 1, 1, 2, 1}) {
      const Tensor last = model->write(ids.slice(1, done, done + count), state);
      EXPECT_LT(distance(last, expected.slice(1, done, done + count)), 1e-4) << attention << done;
      done += count;
      EXPECT_EQ(state.length(), done);
    }
    // A change of a source token changes its own row only; a change of padding changes nothing.
    Tensor changed = sources.clone();
    changed[1][2] = (changed[1][2] + 1) % 53;
    changed[1][5] = (changed[1][5] + 1) % 53;  // padding: beyond length 4
    const Tensor after = model->decode(whole, model->encode(padded_right(changed, {9, 4, 6}))).last;
    EXPECT_EQ(distance(after[0], expected[0]), 0.0) << attention;
    EXPECT_GT(distance(after[1], expected[1]), 1e-5) << attention;
  }
}

TEST(EncoderDecoder, SelectedRowsContinueLikeRowsOfTheirOwn) {
  torch::manual_seed(7);
  nn::EncoderDecoder model(tiny_config(nn::ModelKind::kEncoderDecoder, "microsoft_v1"));
  model->eval();
  const torch::NoGradGuard no_grad;
  const Tensor sources = torch::randint(53, {2, 7}, torch::kLong);
  const Tensor tokens = torch::randint(53, {4, 6}, torch::kLong);
  const auto lengths = [](const Tensor& rows) {
    std::vector<int64_t> result;
    for (int64_t i = 0; i < rows.size(0); ++i) result.push_back(rows[i].item<int64_t>());
    return result;
  };
  nn::WritingState state = model->begin(padded_right(sources, {5, 7}));
  const Tensor beams = torch::tensor({0, 0, 1, 1}, torch::kLong);
  state.select_rows(beams);  // before the first token
  model->write(tokens.slice(1, 0, 3), state);
  const Tensor swap = torch::tensor({1, 0, 2, 2}, torch::kLong);
  state.select_rows(swap, /*same_source=*/true);
  model->write(tokens.slice(1, 3, 4), state);
  const Tensor kept = torch::tensor({3, 0}, torch::kLong);
  state.select_rows(kept);  // other sources, fewer rows
  const Tensor last = model->write(tokens.slice(1, 4, 5).slice(0, 0, 2), state);

  const Tensor first = tokens.slice(1, 0, 3).index_select(0, swap.index_select(0, kept));
  const Tensor second = tokens.slice(1, 3, 4).index_select(0, kept);
  const Tensor third = tokens.slice(1, 4, 5).slice(0, 0, 2);
  const Tensor origin = beams.index_select(0, kept);
  nn::ModelInput whole;
  whole.ids = torch::cat({first, second, third}, 1);
  const Tensor own_lengths = torch::tensor({5, 7}, torch::kLong).index_select(0, origin);
  const nn::Encoded encoded =
      model->encode(padded_right(sources.index_select(0, origin), lengths(own_lengths)));
  EXPECT_LT(distance(last, model->decode(whole, encoded).last.slice(1, 4)), 1e-4);
}

TEST(EncoderDecoder, PromptsOfDifferentLengthsArePaddedOnTheLeft) {
  torch::manual_seed(8);
  nn::EncoderDecoder model(tiny_config(nn::ModelKind::kEncoderDecoder, "diffllama"));
  const torch::NoGradGuard no_grad;
  nn::ModelInput source;
  source.ids = torch::randint(53, {2, 6}, torch::kLong);
  const Tensor ids = torch::randint(53, {2, 5}, torch::kLong);
  nn::WritingState state = model->begin(source);
  state.key_starts = torch::tensor({0, 2}, torch::kLong);
  model->write(ids.slice(1, 0, 4), state);
  const Tensor last = model->write(ids.slice(1, 4), state);
  nn::ModelInput alone;
  alone.ids = source.ids.slice(0, 1);
  nn::WritingState own = model->begin(alone);
  const Tensor expected = model->write(ids.slice(0, 1).slice(1, 2), own).slice(1, -1);
  EXPECT_LT(distance(last.slice(0, 1), expected), 1e-5);
}

TEST(EncoderDecoder, PackedTextsReadTheirOwnSources) {
  torch::manual_seed(9);
  nn::EncoderDecoder model(tiny_config(nn::ModelKind::kEncoderDecoder, "diffllama"));
  const torch::NoGradGuard no_grad;
  const Tensor sources = torch::randint(53, {10}, torch::kLong);
  const Tensor texts = torch::randint(53, {7}, torch::kLong);
  nn::ModelInput source, text, own_source, own_text;
  source.ids = sources;
  source.mask.cu_seqlens_q(torch::tensor({0, 4, 10}, torch::kInt));
  text.ids = texts;
  text.mask.cu_seqlens_q(torch::tensor({0, 5, 7}, torch::kInt));
  own_source.ids = sources.slice(0, 4).unsqueeze(0);
  own_text.ids = texts.slice(0, 5).unsqueeze(0);
  const Tensor packed = model->decode(text, model->encode(source)).last;
  const Tensor alone = model->decode(own_text, model->encode(own_source)).last;
  EXPECT_LT(distance(packed.slice(0, 5), alone[0]), 1e-5);
  EXPECT_THROW(model->decode(own_text, model->encode(source)), diffattn::Error);
}

std::vector<Tensor> gradients_of(nn::EncoderDecoder& model, bool recompute,
                                 KeepAttention keep = KeepAttention::kNothing) {
  model->zero_grad();
  model->checkpoint_activations(recompute, keep);
  nn::ModelInput source, text;
  source.ids = torch::arange(12).view({2, 6});
  text.ids = torch::arange(8).view({2, 4});
  const Tensor last = model->decode(text, model->encode(source)).last;
  nn::linear_cross_entropy(last, model->head_weight(), text.ids).mean.backward();
  std::vector<Tensor> found;
  for (const auto& [name, weight] : models::named_weights(*model)) {
    EXPECT_TRUE(weight.grad().defined()) << name;
    found.push_back(weight.grad().clone());
  }
  return found;
}

TEST(EncoderDecoder, RecomputationGivesTheSameGradients) {
  torch::manual_seed(10);
  nn::EncoderDecoder model(tiny_config(nn::ModelKind::kEncoderDecoder, "diffllama"));
  const auto plain = gradients_of(model, false);
  for (const auto keep : {KeepAttention::kNothing, KeepAttention::kSums, KeepAttention::kResults}) {
    const auto again = gradients_of(model, true, keep);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_LT(distance(plain[i], again[i]), 1e-5) << i;
  }
}

TEST(Stack, RefusesTracesOfRecomputedBlocks) {
  nn::Encoder model(tiny_config(nn::ModelKind::kEncoder, "diffllama"));
  model->checkpoint_activations(true);
  std::vector<nn::AttentionTrace> traces;
  nn::ModelInput input;
  input.ids = torch::arange(6).view({1, 6});
  input.traces = &traces;
  EXPECT_THROW(model->forward(input), diffattn::Error);
  const torch::NoGradGuard no_grad;
  model->forward(input);
  EXPECT_EQ(traces.size(), 2u);
  EXPECT_EQ(traces[1].calls.size(), 1u);
}

TEST(Stack, LambdaFactorZeroLeavesTheFirstMap) {
  torch::manual_seed(11);
  const auto options = nn::PresetOptions(32, 4).head_dim(8);
  const auto layer = nn::make_preset("diffllama", options);
  std::vector<nn::AttentionTrace> traces(3);
  nn::AttentionInput input{.x = torch::randn({1, 5, 32})};
  layer->forward(input, &traces[0]);
  layer->scale_lambda(0.25);
  layer->forward(input, &traces[1]);
  layer->scale_lambda(0.0);
  layer->forward(input, &traces[2]);
  const double full = traces[0].calls[0].lambda.item<double>();
  EXPECT_NEAR(traces[1].calls[0].lambda.item<double>(), 0.25 * full, 1e-7);
  EXPECT_EQ(traces[2].calls[0].lambda.item<double>(), 0.0);
}

int64_t parameters_of(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const Tensor& weight : model.parameters()) count += weight.numel();
  return count;
}

TEST(Models, TheTransformerOfEachKindHasTheSameSize) {
  const auto ratio = [](const auto& model, const auto& baseline) {
    return static_cast<double>(parameters_of(*model)) /
           static_cast<double>(parameters_of(*baseline));
  };
  using nn::ModelKind;
  for (const char* attention : {"diffllama", "microsoft_v1"}) {
    EXPECT_NEAR(ratio(nn::Encoder(tiny_config(ModelKind::kEncoder, attention)),
                      nn::Encoder(tiny_config(ModelKind::kEncoder, "transformer"))),
                1.0, 0.01);
    EXPECT_NEAR(ratio(nn::EncoderDecoder(tiny_config(ModelKind::kEncoderDecoder, attention)),
                      nn::EncoderDecoder(tiny_config(ModelKind::kEncoderDecoder, "transformer"))),
                1.0, 0.01);
  }
}

template <class Model, class Load>
void expect_round_trip(const Model& model, const Load& load) {
  for (const uint64_t shard_bytes : {models::kDefaultShardBytes, uint64_t{8192}}) {
    const TempFolder folder;
    models::save_model(folder.path(), *model, model->config, shard_bytes);
    EXPECT_EQ(std::filesystem::exists(folder / "model.safetensors.index.json"),
              shard_bytes == 8192);
    const Model loaded = load(folder.path());
    EXPECT_EQ(models::model_config_text(loaded->config, torch::kFloat32),
              models::model_config_text(model->config, torch::kFloat32));
    const auto weights = models::named_weights(*model), again = models::named_weights(*loaded);
    ASSERT_EQ(weights.size(), again.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(weights[i].first, again[i].first);
      EXPECT_TRUE(torch::equal(weights[i].second, again[i].second)) << weights[i].first;
    }
    EXPECT_THROW(models::load_causal_lm(folder.path()), io::Error);
  }
}

TEST(ModelFolder, EncodersAndEncoderDecodersRoundTrip) {
  for (const char* attention : {"diffllama", "transformer", "microsoft_v2"}) {
    torch::manual_seed(12);
    auto config = tiny_config(nn::ModelKind::kEncoder, attention);
    config.labels = {"no", "yes", "\"perhaps\""};
    config.classifier_pooling = "cls";
    expect_round_trip(nn::Encoder(config), [&](const std::string& folder) {
      EXPECT_EQ(models::read_model_config(folder).labels, config.labels);
      return models::load_encoder(folder);
    });
    config = tiny_config(nn::ModelKind::kEncoderDecoder, attention);
    config.decoder_start_token_id = 2;
    config.tie_word_embeddings = true;
    expect_round_trip(nn::EncoderDecoder(config), [](const std::string& folder) {
      return models::load_encoder_decoder(folder);
    });
  }
}

}  // namespace
}  // namespace diffattn::train::encoders_test
