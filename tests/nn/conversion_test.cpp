// SPDX-License-Identifier: Apache-2.0
//
// Converts a layer from Microsoft's layout to Hugging Face's: it permutes rows and moves the weight
// of the head norm into the output projection. Both layers compute the same function.

#include <map>
#include <memory>

#include "diffattn/nn/presets.h"
#include "tests/nn/layers.h"

namespace diffattn::testing::conversion_test {
namespace {

using nn::AttentionLayer;
using torch::Tensor;
using Weights = std::map<std::string, Tensor>;

struct Shape {
  int64_t embed, heads, kv_heads, head_dim;  // heads counts differential heads
};

Weights weights_of(const AttentionLayer& layer) {
  Weights weights;
  for (const auto& item : layer.named_parameters()) weights[item.key()] = item.value().detach();
  return weights;
}

void set_weights(AttentionLayer& layer, const Weights& weights) {
  const torch::NoGradGuard no_grad;
  for (auto& item : layer.named_parameters()) item.value().copy_(weights.at(item.key()));
}

/// Moves the rows of sub-head 2j + s to s h + j, and interleaved rotary pairs to half-split ones.
Tensor rows_to_halves(const Tensor& rows, int64_t heads, int64_t d) {
  return rows.view({heads, 2, d / 2, 2, -1}).permute({1, 0, 3, 2, 4}).reshape(rows.sizes());
}

/// Exchanges the first two axes of rows (first, second, d): (head, half) becomes (half, head).
Tensor exchange(const Tensor& rows, int64_t first, int64_t second, int64_t d) {
  return rows.view({first, second, d, -1}).permute({1, 0, 2, 3}).reshape(rows.sizes());
}

Weights to_hugging_face(const Weights& w, const Shape& s) {
  const Tensor columns = w.at("subln.weight").repeat({s.heads});  // column c of head j is j 2d + c
  Weights out{{"q_proj.weight", rows_to_halves(w.at("q_proj.weight"), s.heads, s.head_dim)},
              {"k_proj.weight", rows_to_halves(w.at("k_proj.weight"), s.kv_heads, s.head_dim)},
              {"v_proj.weight", exchange(w.at("v_proj.weight"), s.kv_heads, 2, s.head_dim)},
              {"o_proj.weight", w.at("out_proj.weight") * columns}};
  for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
    out[name] = w.at(name);
  }
  return out;
}

std::shared_ptr<AttentionLayer> layer_of(const char* preset, const Shape& s) {
  auto layer = nn::make_preset(preset, nn::PresetOptions(s.embed, 2 * s.heads)
                                           .num_key_value_heads(2 * s.kv_heads)
                                           .head_dim(s.head_dim)
                                           .layer_index(2));
  layer->to(torch::kFloat64);
  return layer;
}

TEST(Conversion, MicrosoftAndHuggingFaceLayersAreOneFunction) {
  for (const Shape& s : {Shape{48, 4, 4, 6}, Shape{40, 6, 2, 8}, Shape{32, 1, 1, 16}}) {
    torch::manual_seed(12);
    const auto microsoft = layer_of("microsoft_v1", s), hugging_face = layer_of("diffllama", s);
    Weights weights = weights_of(*microsoft);
    weights.at("subln.weight").uniform_(0.5, 1.5);
    set_weights(*hugging_face, to_hugging_face(weights, s));
    const Tensor x = torch::randn({2, 11, s.embed}, torch::kFloat64);
    const Tensor got = hugging_face->forward(AttentionInput{.x = x});
    expect_close(got, microsoft->forward(AttentionInput{.x = x}), 1e-12, "layer output");
    // Without the permutation the layers differ.
    Weights unpermuted = to_hugging_face(weights, s);
    unpermuted["q_proj.weight"] = weights.at("q_proj.weight");
    set_weights(*hugging_face, unpermuted);
    EXPECT_GT((hugging_face->forward(AttentionInput{.x = x}) - got).abs().max().item<double>(),
              1e-3);
  }
}

}  // namespace
}  // namespace diffattn::testing::conversion_test
