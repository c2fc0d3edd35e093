// SPDX-License-Identifier: Apache-2.0
#include "tests/support/generators.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>

namespace diffattn::testing {
namespace {

const char* name_of(LambdaShape shape) {
  switch (shape) {
    case LambdaShape::kScalar: return "scalar";
    case LambdaShape::kPerHead: return "H";
    case LambdaShape::kPerToken: return "BMH";
  }
  return "?";
}

Layout random_layout(Rng& rng, bool input) {
  if (input && rng.chance(0.15)) {
    return rng.pick({Layout::kBroadcastBatch, Layout::kBroadcastHead, Layout::kOverlapping});
  }
  return rng.pick({Layout::kBmhd, Layout::kBmhd, Layout::kBhmd, Layout::kSlice, Layout::kGapped,
                   Layout::kReversed});
}

/// Returns the last columns up to the row's own, or a window with a bound on either or both sides.
Window random_window(const Spec& spec, Rng& rng) {
  if (rng.chance(0.4)) return Window::last(rng.integer(0, spec.seq_k + 2));
  const auto bound = [&](int64_t size) { return rng.chance(0.3) ? -1 : rng.integer(0, size + 2); };
  const int64_t left = bound(spec.seq_k);
  return Window::beside(left, bound(spec.seq_q));
}

void choose_visibility(Spec& spec, Rng& rng) {
  spec.causal = rng.chance(0.5);
  if (rng.chance(0.3)) spec.window = random_window(spec, rng);
  spec.varlen = rng.chance(0.2);
  spec.key_starts = rng.chance(0.2);
  spec.key_lengths = rng.chance(0.25);
  spec.align_to_key_lengths = spec.key_lengths && rng.chance(0.5);
  if (rng.chance(0.3)) {
    spec.mask = rng.chance(0.5) ? MaskKind::kBoolean : MaskKind::kAdditive;
    spec.mask_dtype =
        rng.pick({Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16});
    spec.mask_batch = rng.chance(0.5);
    spec.mask_head = rng.chance(0.5);
    spec.mask_row = rng.chance(0.7);
    spec.mask_column = rng.chance(0.8);
    spec.mask_transposed = rng.chance(0.3);
    spec.mask_hidden = rng.pick({0.0, 0.3, 0.3, 0.9});
  }
}

int64_t work_of(const Spec& spec) {
  return spec.batch * spec.heads * spec.seq_q * spec.seq_k * (spec.head_dim + spec.value_dim);
}

}  // namespace

std::string to_string(const Spec& spec) {
  std::ostringstream out;
  out << "seed=" << spec.seed << " B=" << spec.batch << " H=" << spec.heads << "/" << spec.kv_heads;
  if (spec.noise_heads != 0) out << " noise=" << spec.noise_heads;
  out << " M=" << spec.seq_q << " N=" << spec.seq_k << " D=" << spec.head_dim
      << " Dv=" << spec.value_dim << " scale=" << spec.scale << "," << spec.scale2
      << " lambda=" << name_of(spec.lambda_shape) << "[" << spec.lambda_low << ","
      << spec.lambda_high << "]";
  if (spec.logit_spread != 1.0) out << " spread=" << spec.logit_spread;
  if (spec.shared_k) out << " shared_k";
  if (spec.shared_q) out << " shared_q";
  if (spec.causal) out << " causal";
  if (spec.window.left != kNoBound) out << " left=" << spec.window.left;
  if (spec.window.right != kNoBound) out << " right=" << spec.window.right;
  if (spec.key_starts) out << " starts";
  if (spec.key_lengths) out << " lengths" << (spec.align_to_key_lengths ? "(aligned)" : "");
  if (spec.varlen) out << " varlen";
  if (spec.mask != MaskKind::kNone) {
    out << (spec.mask == MaskKind::kBoolean ? " mask=boolean[" : " mask=additive[")
        << (spec.mask_batch ? "B" : "1") << (spec.mask_head ? "H" : "1")
        << (spec.mask_row ? "M" : "1") << (spec.mask_column ? "N" : "1") << "]"
        << (spec.mask_transposed ? "^T" : "") << "," << name_of(spec.mask_dtype)
        << ",hidden=" << spec.mask_hidden;
  }
  if (spec.norm) out << " norm" << (spec.norm_weight ? "+weight" : "") << ",eps=" << spec.norm_eps;
  if (spec.out_scale != 1.0) out << " out_scale=" << spec.out_scale;
  out << " layout=" << name_of(spec.query_layout) << "/" << name_of(spec.key_layout) << "/"
      << name_of(spec.value_layout) << "/" << name_of(spec.out_layout) << "+" << spec.offset;
  if (spec.save_o) out << " save_o";
  if (!spec.save_lse) out << " no lse";
  return out.str();
}

Spec random_spec(uint64_t seed, const SizeLimits& limits) {
  Rng rng(seed);
  Spec spec;
  spec.seed = seed;
  const int64_t group = rng.pick<int64_t>({1, 1, 2, 4, 8});
  spec.kv_heads = rng.integer(1, group >= 4 ? 2 : 3);
  spec.heads = spec.kv_heads * group;
  spec.batch = rng.integer(1, 3);
  spec.seq_q = rng.integer(1, limits.seq);
  spec.seq_k = rng.chance(0.4) ? spec.seq_q : rng.integer(1, limits.seq);
  spec.head_dim = rng.chance(0.5) ? rng.pick<int64_t>({8, 16, 32}) : rng.integer(1, 40);
  spec.head_dim = std::min(spec.head_dim, limits.head_dim);
  spec.value_dim = rng.pick({spec.head_dim, 2 * spec.head_dim, rng.integer(1, 48)});
  spec.value_dim = std::min(spec.value_dim, limits.value_dim);
  while (work_of(spec) > limits.work) {  // shrink first what matters least to tiling
    if (spec.batch > 1) {
      --spec.batch;
    } else if (spec.kv_heads > 1) {
      spec.heads -= group;
      --spec.kv_heads;
    } else {
      spec.seq_q = std::max<int64_t>(1, spec.seq_q / 2);
      spec.seq_k = std::max<int64_t>(1, spec.seq_k / 2);
    }
  }
  choose_visibility(spec, rng);
  spec.scale = rng.uniform(0.5, 1.5) / std::sqrt(static_cast<double>(spec.head_dim));
  spec.scale2 = rng.chance(0.5) ? spec.scale : rng.uniform(-1.0, 1.0) * spec.scale;
  spec.lambda_shape =
      rng.pick({LambdaShape::kScalar, LambdaShape::kPerHead, LambdaShape::kPerToken});
  spec.logit_spread = rng.pick({0.5, 1.0, 1.0, 3.0});
  spec.shared_k = rng.chance(0.25);
  spec.shared_q = rng.chance(0.1);
  spec.norm = rng.chance(0.4);
  spec.norm_weight = spec.norm && rng.chance(0.6);
  spec.norm_eps = rng.pick({1e-5, 1e-3});
  spec.out_scale = rng.chance(0.5) ? 1.0 : rng.uniform(-1.5, 1.5);
  spec.query_layout = random_layout(rng, true);
  spec.key_layout = random_layout(rng, true);
  spec.value_layout = random_layout(rng, true);
  spec.out_layout = random_layout(rng, false);
  spec.offset = rng.pick<int64_t>({0, 0, 1, 3});
  spec.save_o = rng.chance(0.5);
  return spec;
}

Spec with_noise_heads(Spec spec) {
  Rng rng(spec.seed ^ 0x4015e);
  const int64_t group = std::max<int64_t>(2, spec.heads / spec.kv_heads);
  const int64_t noise_group = group % 2 == 0 && rng.chance(0.5) ? group : rng.integer(2, 4);
  spec.noise_heads = spec.kv_heads * (group >= 4 && noise_group <= 2 ? 2 : 1);
  spec.heads = spec.noise_heads * noise_group;
  spec.mask_head = spec.shared_q = false;
  return spec;
}

uint64_t run_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("DIFFATTN_TEST_SEED");
    const uint64_t value = given != nullptr ? std::strtoull(given, nullptr, 0)
                                            : (static_cast<uint64_t>(std::random_device{}()) << 20);
    std::printf("DIFFATTN_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    std::fflush(stdout);
    return value;
  }();
  return seed;
}

int64_t scaled(int64_t count) {
  const char* factor = std::getenv("DIFFATTN_TEST_SCALE");
  if (factor == nullptr) return count;
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(count) * std::atof(factor)));
}

}  // namespace diffattn::testing
