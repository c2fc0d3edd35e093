// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>

#include "diffattn/nn/rotary.h"
#include "diffattn/nn/route.h"

namespace diffattn::nn {

/// What the two maps of a head are made of. Widths: q and k have `head_dim` d.
enum class AttentionKind {
  kV1,           // q1 q2, k1 k2, V of width 2d (Microsoft, DiffLlama, Phi-4-flash, Motif-2.6B)
  kV2,           // q1 q2 share one key; V of width d
  kGrouped,      // Motif-2-12.7B: several signal heads share one noise head; V of width 2d
  kTemperature,  // q2 = q1, k2 = k1, map 2 at a higher temperature; V of width d
  kPlain,        // one map: an ordinary Transformer; V of width d
};

/// Which sub-heads of a projection belong to differential head j (q and k of V1; its V likewise).
enum class HeadLayout {
  kStripes,  // 2j and 2j + 1: Microsoft, Phi-4-flash, Motif
  kHalves,   // j and j + count / 2: Hugging Face DiffLlama
};

/// Which key sub-heads meet (head j, map s) when r query heads share a kv head.
enum class GqaPairing {
  kPaired,       // (j / r, s): Microsoft's flash files, Hugging Face, vLLM
  kLegacyNaive,  // sub-head (2j + s) / r: Microsoft's naive file and the SDPA forks
};

enum class HeadNorm { kAffine, kPlain, kNone };

enum class LambdaKind {
  kVectors,  // exp(q1.k1) - exp(q2.k2) + lambda_init: one number per layer
  kToken,    // sigmoid(lambda_proj x): one per token and head
  kFixed,    // lambda_init itself
  kLearned,  // one learned number, at first lambda_init
};

enum class LambdaSchedule {
  kPaper,  // 0.8 - 0.6 exp(-0.3 l), l = 0 for the first layer
  kMotif,  // the same with l - 1
};

enum class LambdaPrecision {
  kFloat32,    // at least float32 throughout
  kReference,  // each exponential and the sum rounded to the activations' type, as published
};

/// lambda_init of layer l (from 0).
double lambda_init(int64_t layer_index, LambdaSchedule schedule = LambdaSchedule::kPaper);

/// What parameters are called. With `qkv` the three projections are one matrix (rows q, k, v); with
/// `inner` the lambda vectors and the head norm live in a child of that name.
struct ParameterNames {
  std::string q = "q_proj", k = "k_proj", v = "v_proj", out = "out_proj";
  std::string qkv, inner;
  std::string norm = "subln", lambda_proj = "lambda_proj";
};

/// The axes on which published differential attentions differ. The defaults are Microsoft V1
/// without rotary embedding; `presets.h` has the published points.
struct MultiheadDiffAttentionOptions {
  MultiheadDiffAttentionOptions(int64_t embed_dim, int64_t num_heads)
      : embed_dim_(embed_dim), num_heads_(num_heads) {}

  TORCH_ARG(int64_t, embed_dim);
  /// Heads of the output. V1: pairs of sub-heads; grouped: signal heads.
  TORCH_ARG(int64_t, num_heads);
  /// Kv heads, of V1 and grouped attention in pairs. Default: num_heads (grouped: noise_heads).
  TORCH_ARG(std::optional<int64_t>, num_kv_heads);
  /// Width of q and k. Default: embed_dim / num_heads, half of it for V1 and grouped.
  TORCH_ARG(std::optional<int64_t>, head_dim);
  TORCH_ARG(AttentionKind, kind) = AttentionKind::kV1;
  /// Grouped only: noise heads, each shared by num_heads / noise_heads signal heads, last in its
  /// group.
  TORCH_ARG(std::optional<int64_t>, noise_heads);
  /// Temperature only: map 2's scores are divided by it; above 1.
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
  /// In place of what layer_index and lambda_schedule give.
  TORCH_ARG(std::optional<double>, lambda_init);
  TORCH_ARG(double, lambda_std) = 0.1;
  TORCH_ARG(LambdaPrecision, lambda_precision) = LambdaPrecision::kFloat32;

  TORCH_ARG(bool, qkv_bias) = false;
  TORCH_ARG(bool, out_bias) = false;
  TORCH_ARG(bool, causal) = true;
  /// Each token sees only the last `window` ones; causal attention only.
  TORCH_ARG(std::optional<int64_t>, window);
  /// Keys and values come from a context of width `context_dim` (default: embed_dim). No rotary
  /// embedding then.
  TORCH_ARG(bool, cross_attention) = false;
  TORCH_ARG(std::optional<int64_t>, context_dim);
  /// Of the output projection's result, in training.
  TORCH_ARG(double, dropout) = 0.0;
  TORCH_ARG(Route, route) = Route::kFused;
  TORCH_ARG(ParameterNames, names);
};

/// What the options leave open, worked out; every later step reads sizes from here.
struct AttentionSizes {
  int64_t heads = 0;        // H: of the output
  int64_t kv_heads = 0;     // Hkv: that keys and values are shared by
  int64_t query_heads = 0;  // of width head_dim, in the q projection
  int64_t key_heads = 0;    // of width head_dim, in the k projection
  int64_t head_dim = 0;     // D
  int64_t value_dim = 0;    // Dv
  double lambda_init = 0.0;
  double out_scale = 1.0;
};

/// Throws `diffattn::Error` naming the option, what was expected and what came.
AttentionSizes check(const MultiheadDiffAttentionOptions& options);

}  // namespace diffattn::nn
