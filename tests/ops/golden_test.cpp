// SPDX-License-Identifier: Apache-2.0
//
// Compares the `attention` operator, with projections around it, with recordings of the published
// modules: outputs and gradients agree within 2e-5 in float32, on every backend.

#include <gtest/gtest.h>

#include <cmath>

#include "diffattn/gqa_pairing.h"
#include "diffattn/ops.h"
#include "tests/ops/backends.h"
#include "tests/ops/diffllama.h"
#include "tests/ops/golden.h"

namespace diffattn::testing::golden_test {
namespace {

using torch::Tensor;

/// Absolute for values up to 1, relative above, since some recorded float32 sums reach 40.
constexpr double kTolerance = 2e-5;

double lambda_init(int64_t depth) {
  return 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(depth));
}

/// Rotates x [B, N, heads, d] by tables cos, sin [N, d/2] in pairs (0,1), (2,3), ...
Tensor rotate_interleaved(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const Tensor pairs = x.unflatten(-1, {-1, 2});
  const Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  const Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  return torch::stack({even * c - odd * s, odd * c + even * s}, -1).flatten(-2);
}

/// A published attention module, with its recorded parameters as leaves.
struct Module {
  const GoldenFile& file;
  Tensors leaves;

  explicit Module(const GoldenFile& golden) : file(golden) {
    for (const auto& [name, tensor] : golden.tensors) {
      if (name == "x") leaves["x"] = tensor.clone().requires_grad_(true);
      if (name.starts_with("param.")) {
        leaves[name.substr(6)] = tensor.clone().requires_grad_(true);
      }
    }
  }

  const Tensor& leaf(const std::string& name) const { return leaves.at(name); }

  /// Returns x W^T as [B, N, heads, width], rotated if the recording has rotary tables.
  Tensor project(const std::string& name, int64_t width, bool rotary) const {
    const Tensor y = linear(leaf("x"), leaf(name + ".weight")).unflatten(-1, {-1, width});
    if (!rotary || !file.has("rope.cos")) return y;
    return rotate_interleaved(y, file.tensors.at("rope.cos"), file.tensors.at("rope.sin"));
  }

  Tensor v1(int64_t depth, int64_t heads, int64_t head_dim, GqaPairing pairing) const {
    Tensor k = project("k_proj", head_dim, true);  // [B, N, 2g, d]
    Tensor v = project("v_proj", 2 * head_dim, false);
    if (pairing == GqaPairing::kLegacyNaive) {  // sub-head i of q reads sub-head i / r of k
      const int64_t r = heads / v.size(2);
      k = k.repeat_interleave(r, 2);
      v = v.repeat_interleave(r, 2);
    }
    const Tensor q = project("q_proj", head_dim, true).unflatten(2, {-1, 2});
    k = k.unflatten(2, {-1, 2});
    const auto dot = [&](const char* a, const char* b) { return (leaf(a) * leaf(b)).sum().exp(); };
    const double init = lambda_init(depth);
    const Tensor lambda = dot("lambda_q1", "lambda_k1") - dot("lambda_q2", "lambda_k2") + init;
    const Tensor out =
        attention(q.select(3, 0), q.select(3, 1), k.select(3, 0), k.select(3, 1), v, lambda,
                  AttentionOptions()
                      .causal(true)
                      .norm_eps(1e-5)
                      .norm_weight(leaf("subln.weight"))
                      .out_scale(1.0 - init));
    return linear(out.flatten(2), leaf("out_proj.weight"));
  }

  Tensor v2(int64_t head_dim) const {
    const Tensor q = project("q_proj", head_dim, true).unflatten(2, {-1, 2});
    const Tensor k = project("k_proj", head_dim, true);
    const Tensor v = project("v_proj", head_dim, false);
    const Tensor lambda = linear(leaf("x"), leaf("lambda_proj.weight")).sigmoid();  // [B, N, h]
    const Tensor out =
        attention(q.select(3, 0), q.select(3, 1), k, k, v, lambda, AttentionOptions().causal(true));
    return linear(out.flatten(2), leaf("o_proj.weight"));
  }

  /// Compares the gradients of sum(out g) with every recorded `grad.*`.
  void expect_gradients(const Tensor& out) const {
    (out * file.tensors.at("g")).sum().backward();
    int compared = 0;
    for (const auto& [name, tensor] : file.tensors) {
      if (!name.starts_with("grad.")) continue;
      expect_close(leaf(name.substr(5)).grad(), tensor, file.path + ": " + name);
      ++compared;
    }
    EXPECT_GE(compared, 5) << file.path;
  }

  static void expect_close(const Tensor& got, const Tensor& want, const std::string& what) {
    ASSERT_EQ(got.sizes(), want.sizes()) << what;
    const Tensor error = ((got - want).abs() / want.abs().clamp_min(1.0)).flatten();
    const int64_t at = error.argmax().item<int64_t>();
    // The comparison is false for NaN, so NaN fails.
    EXPECT_TRUE(error[at].item<double>() <= kTolerance)
        << what << ": element " << at << " is " << got.flatten()[at].item<double>() << ", expected "
        << want.flatten()[at].item<double>();
  }

  /// Compares with the recorded output "out" and with those that start with `prefix`.
  void expect_outputs(const Tensor& out, const std::string& prefix) const {
    for (const auto& [name, tensor] : file.tensors) {
      if (name == "out" || name.starts_with(prefix)) {
        expect_close(out, tensor, file.path + ": " + name);
      }
    }
  }
};

class GoldenTest : public ::testing::TestWithParam<CpuBackend> {
 protected:
  void SetUp() override { limit_backend(GetParam().name); }
  void TearDown() override { limit_backend(""); }

  static std::vector<std::string> paths(GoldenKind kind) {
    std::vector<std::string> result;
    for (const Golden& golden : find_goldens()) {
      if (golden.kind == kind) result.push_back(golden.path);
    }
    return result;
  }
};

TEST_P(GoldenTest, MicrosoftV1) {
  for (const std::string& path : paths(GoldenKind::kMicrosoftV1)) {
    const GoldenFile file = read_golden(path);
    const int64_t depth = file.number("depth"), heads = file.number("num_heads");
    const int64_t head_dim = file.number("head_dim");
    const Module module(file);
    const Tensor out = module.v1(depth, heads, head_dim, GqaPairing::kPaired);
    module.expect_outputs(out, "out.flashdiff");
    module.expect_gradients(out);
    if (file.has("out.naive")) {
      const Tensor naive = Module(file).v1(depth, heads, head_dim, GqaPairing::kLegacyNaive);
      Module::expect_close(naive, file.tensors.at("out.naive"), path + ": out.naive");
    }
  }
}

TEST_P(GoldenTest, MicrosoftV2) {
  for (const std::string& path : paths(GoldenKind::kMicrosoftV2)) {
    const GoldenFile file = read_golden(path);
    const Module module(file);
    const Tensor out = module.v2(file.number("head_dim"));
    module.expect_outputs(out, "out.");
    module.expect_gradients(out);
  }
}

TEST_P(GoldenTest, SdpaFork) {
  for (const std::string& path : paths(GoldenKind::kSdpa)) {
    const GoldenFile file = read_golden(path);
    const Module module(file);
    const Tensor out = module.v1(file.number("depth"), file.number("baseline_num_heads") / 2,
                                 file.number("head_dim"), GqaPairing::kLegacyNaive);
    module.expect_outputs(out, "out.");
    module.expect_gradients(out);
  }
}

TEST_P(GoldenTest, DiffLlama) {
  for (const std::string& path : paths(GoldenKind::kDiffLlama)) {
    const GoldenFile io = read_golden(path + "/io.safetensors");
    const DiffLlama model(path);
    const Tensor mask = io.tensors.at("attention_mask");
    const Tensor valid = mask.to(torch::kBool);
    const auto result = model.forward(io.tensors.at("input_ids"), mask);
    const auto at_tokens = [&](const Tensor& t) { return t.index({valid}); };
    for (size_t layer = 0; layer < result.hidden.size(); ++layer) {
      const std::string name = "hidden." + std::to_string(layer);
      Module::expect_close(at_tokens(result.hidden[layer]), at_tokens(io.tensors.at(name)),
                           path + ": " + name);
    }
    Module::expect_close(at_tokens(result.logits), at_tokens(io.tensors.at("logits")),
                         path + ": logits");
    Module::expect_close(model.greedy(io.tensors.at("greedy").slice(1, 0, 8), 24).to(torch::kFloat),
                         io.tensors.at("greedy").to(torch::kFloat), path + ": greedy");
  }
}

TEST(GoldenFolder, HasRecordings) { EXPECT_FALSE(find_goldens().empty()); }

INSTANTIATE_TEST_SUITE_P(Backends, GoldenTest, ::testing::ValuesIn(available_cpu_backends()),
                         backend_name);

}  // namespace
}  // namespace diffattn::testing::golden_test
