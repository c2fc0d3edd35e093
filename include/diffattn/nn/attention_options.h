// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>

#include "diffattn/gqa_pairing.h"
#include "diffattn/nn/rotary.h"
#include "diffattn/nn/route.h"

namespace diffattn::nn {

/// The queries, keys and values of the two maps of a head. d is `head_dim`, the width of q and k.
enum class AttentionKind {
  kV1,           // q1 q2, k1 k2, V of width 2d (Microsoft, DiffLlama, Phi-4-flash, Motif-2.6B)
  kV2,           // q1 q2 share one key; V of width d
  kGrouped,      // Motif-2-12.7B: several signal heads share one noise head; V of width 2d
  kTemperature,  // q2 = q1, k2 = k1, map 2 at a higher temperature; V of width d
  kPlain,        // one map: an ordinary Transformer; V of width d
};

/// The two sub-heads of a projection that form differential head j (q and k of V1, and its V).
enum class HeadLayout {
  kStripes,  // 2j and 2j + 1: Microsoft, Phi-4-flash, Motif
  kHalves,   // j and j + count / 2: Hugging Face DiffLlama
};

using diffattn::GqaPairing;

/// The RMS norm of each head's output: with a learned weight, without one, or no norm.
enum class HeadNorm { kAffine, kPlain, kNone };

enum class LambdaKind {
  kVectors,  // exp(q1.k1) - exp(q2.k2) + lambda_init: one number per layer
  kToken,    // sigmoid(lambda_proj x): one per token and head
  kFixed,    // lambda_init
  kLearned,  // one learned number, initially lambda_init
};

enum class LambdaSchedule {
  kPaper,  // 0.8 - 0.6 exp(-0.3 l), l = 0 for the first layer
  kMotif,  // the same with l - 1
};

enum class LambdaPrecision {
  kFloat32,    // at least float32 throughout
  kReference,  // rounds each exponential and the sum to the type of the activations, as published
};

/// Where the keys and values of a layer come from, in a stack whose layers share them.
enum class KeySharing {
  kNone,    // from the layer's own projections, for itself
  kOwner,   // from its own projections, for itself and for later layers
  kReader,  // from the owner: the layer projects queries only
};

/// Returns lambda_init of a layer; the first layer has index 0.
double lambda_init(int64_t layer_index, LambdaSchedule schedule = LambdaSchedule::kPaper);

/// Names of the parameters. A non-empty `qkv` makes the three projections one matrix (rows q, k,
/// v). A non-empty `inner` puts the lambda vectors and the head norm into a child module of that
/// name.
struct ParameterNames {
  std::string q = "q_proj", k = "k_proj", v = "v_proj", out = "out_proj";
  std::string qkv, inner;
  std::string norm = "subln", lambda_proj = "lambda_proj";
};

/// The options in which published differential attentions differ. The defaults are Microsoft V1
/// without rotary embedding; `presets.h` has the published combinations.
struct MultiheadDiffAttentionOptions {
  MultiheadDiffAttentionOptions(int64_t embed_dim, int64_t num_heads)
      : embed_dim_(embed_dim), num_heads_(num_heads) {}

  TORCH_ARG(int64_t, embed_dim);
  /// Heads of the output. For V1 a head is a pair of sub-heads, for grouped a signal head.
  TORCH_ARG(int64_t, num_heads);
  /// Number of kv heads; V1 and grouped attention count pairs. Default: num_heads (grouped:
  /// noise_heads).
  TORCH_ARG(std::optional<int64_t>, num_kv_heads);
  /// Width of q and k. Default: embed_dim / num_heads, half of it for V1 and grouped.
  TORCH_ARG(std::optional<int64_t>, head_dim);
  TORCH_ARG(AttentionKind, kind) = AttentionKind::kV1;
  /// Grouped only: number of noise heads. num_heads / noise_heads signal heads and, after them,
  /// their noise head form a group.
  TORCH_ARG(std::optional<int64_t>, noise_heads);
  /// Temperature only: divisor of map 2's scores; above 1.
  TORCH_ARG(double, temperature) = 2.0;
  TORCH_ARG(HeadLayout, layout) = HeadLayout::kStripes;
  TORCH_ARG(GqaPairing, pairing) = GqaPairing::kPaired;
  TORCH_ARG(RotaryOptions, rotary);

  TORCH_ARG(HeadNorm, head_norm) = HeadNorm::kAffine;
  TORCH_ARG(double, norm_eps) = 1e-5;
  /// Multiplies the heads' output. Default: 1 - lambda_init with a head norm, 1 without.
  TORCH_ARG(std::optional<double>, out_scale);

  TORCH_ARG(LambdaKind, lambda) = LambdaKind::kVectors;
  TORCH_ARG(int64_t, layer_index) = 0;
  TORCH_ARG(LambdaSchedule, lambda_schedule) = LambdaSchedule::kPaper;
  /// Replaces the value that follows from layer_index and lambda_schedule.
  TORCH_ARG(std::optional<double>, lambda_init);
  TORCH_ARG(double, lambda_std) = 0.1;
  TORCH_ARG(LambdaPrecision, lambda_precision) = LambdaPrecision::kFloat32;

  TORCH_ARG(bool, qkv_bias) = false;
  TORCH_ARG(bool, out_bias) = false;
  TORCH_ARG(bool, causal) = true;
  /// Each token sees only the last `window` tokens; causal attention only.
  TORCH_ARG(std::optional<int64_t>, window);
  /// Takes keys and values from a context of width `context_dim` (default: embed_dim), without a
  /// rotary embedding.
  TORCH_ARG(bool, cross_attention) = false;
  TORCH_ARG(std::optional<int64_t>, context_dim);
  TORCH_ARG(KeySharing, key_sharing) = KeySharing::kNone;
  /// Dropout on the result of the output projection, in training.
  TORCH_ARG(double, dropout) = 0.0;
  TORCH_ARG(Route, route) = Route::kFused;
  TORCH_ARG(ParameterNames, names);
};

/// Sizes and factors that follow from the options.
struct AttentionSizes {
  int64_t heads = 0;        // H: heads of the output
  int64_t kv_heads = 0;     // Hkv: kv heads, each shared by H / Hkv heads
  int64_t query_heads = 0;  // heads of width head_dim in the q projection
  int64_t key_heads = 0;    // heads of width head_dim in the k projection
  int64_t head_dim = 0;     // D
  int64_t value_dim = 0;    // Dv
  double lambda_init = 0.0;
  double out_scale = 1.0;
};

/// Checks the options and returns the sizes. Throws `diffattn::Error` naming the option, the
/// expected value and the actual one.
AttentionSizes check(const MultiheadDiffAttentionOptions& options);

}  // namespace diffattn::nn
