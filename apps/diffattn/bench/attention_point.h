// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/diffattn/bench/routes/routes.h"
#include "apps/diffattn/bench/sweep.h"

namespace diffattn::app {

/// Options of `bench attention`.
struct AttentionSettings {
  std::vector<int64_t> seq{512, 2048}, head_dim{64};
  std::vector<std::string> dtype{"float32", "bfloat16"}, mask{"causal", "full"};
  std::vector<std::string> pass{"forward", "backward", "decode"};
  std::vector<int> threads;
  int64_t heads = 4, batch = 1;
  std::string device = "cpu", lambda = "number";
  std::vector<std::string> route;
  BenchOutput output;

  bool on_gpu() const { return device != "cpu"; }
};

/// One point of the sweep.
struct AttentionPoint {
  int64_t seq, head_dim;
  std::string dtype, mask, pass;
  int threads;

  bool packed() const { return mask == "varlen" && pass != "decode"; }
};

/// Returns all points of the sweep.
std::vector<AttentionPoint> attention_points(const AttentionSettings& s);

/// Returns random tensors for a point. Decode has one query per sequence.
LayerTensors attention_tensors(const AttentionSettings& s, const AttentionPoint& p);

/// Returns mask, window or document offsets of a point.
AttentionOptions attention_options(const AttentionSettings& s, const AttentionPoint& p,
                                   const LayerTensors& t);

/// Returns the useful FLOP of a point, per visible (query, key) pair: 20d backward; forward 12d on
/// a GPU, which multiplies v by each map, and 8d on a CPU, which can know both softmax denominators
/// before it reads v.
double useful_flop(const AttentionSettings& s, const AttentionPoint& p);

}  // namespace diffattn::app
