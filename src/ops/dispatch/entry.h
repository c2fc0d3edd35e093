// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>

#include "ops/glue/arguments.h"

/// Conversion between the flat argument lists of the dispatcher (schemas: register.cpp) and our
/// structs. `entry::x<implementation>` is the function to register; `call::x` calls operator x.
namespace diffattn::ops {

// The parameters that the schemas share, and the structs to pack them into.
#define DIFFATTN_PROBLEM_PARAMETERS                                                                \
  std::optional<double> scale, std::optional<double> scale2, bool causal,                          \
      std::optional<int64_t> window, const OptionalTensor &mask, const OptionalTensor &key_starts, \
      const OptionalTensor &key_lengths, const OptionalTensor &cu_seqlens_q,                       \
      const OptionalTensor &cu_seqlens_k
#define DIFFATTN_WINDOW_PARAMETERS int64_t window_left, int64_t window_right
#define DIFFATTN_EPILOGUE_PARAMETERS \
  const OptionalTensor &norm_weight, std::optional<double> norm_eps, double out_scale
#define DIFFATTN_QUERIES_AND_KEYS \
  const Tensor &q1, const Tensor &q2, const Tensor &k1, const Tensor &k2

#define DIFFATTN_PACK_PROBLEM                                                          \
  {                                                                                    \
    q1, q2, k1, k2, lam, scale, scale2, causal, window, mask, key_starts, key_lengths, \
        cu_seqlens_q, cu_seqlens_k, window_left, window_right                          \
  }
#define DIFFATTN_PACK_ATTENTION \
  { DIFFATTN_PACK_PROBLEM, v, norm_weight, norm_eps, out_scale }

using TwoTensors = std::tuple<Tensor, Tensor>;
using FiveTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using SixTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using EightTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

namespace entry {

template <auto Implementation>
Tensor attention(DIFFATTN_QUERIES_AND_KEYS, const Tensor& v, const Tensor& lam,
                 DIFFATTN_PROBLEM_PARAMETERS, DIFFATTN_EPILOGUE_PARAMETERS,
                 DIFFATTN_WINDOW_PARAMETERS) {
  return Implementation(AttentionArguments DIFFATTN_PACK_ATTENTION);
}

template <auto Implementation>
FiveTensors attention_forward(DIFFATTN_QUERIES_AND_KEYS, const Tensor& v, const Tensor& lam,
                              DIFFATTN_PROBLEM_PARAMETERS, DIFFATTN_EPILOGUE_PARAMETERS,
                              bool save_outputs, DIFFATTN_WINDOW_PARAMETERS, bool save_o) {
  const SavedOutputs save = save_outputs ? SavedOutputs::kBoth
                            : save_o     ? SavedOutputs::kO
                                         : SavedOutputs::kNone;
  const ForwardResult r = Implementation(AttentionArguments DIFFATTN_PACK_ATTENTION, save);
  return {r.out, r.lse1, r.lse2, r.o, r.o2};
}

template <auto Implementation>
TwoTensors attention_recompute(DIFFATTN_QUERIES_AND_KEYS, const Tensor& v, const Tensor& lam,
                               const Tensor& lse1, const Tensor& lse2, DIFFATTN_PROBLEM_PARAMETERS,
                               DIFFATTN_EPILOGUE_PARAMETERS, DIFFATTN_WINDOW_PARAMETERS) {
  const RecomputeResult r = Implementation(AttentionArguments DIFFATTN_PACK_ATTENTION, lse1, lse2);
  return {r.out, r.o};
}

template <auto Implementation>
EightTensors attention_backward(const Tensor& dout, DIFFATTN_QUERIES_AND_KEYS, const Tensor& v,
                                const Tensor& lam, const Tensor& lse1, const Tensor& lse2,
                                const Tensor& o, const Tensor& o2, Wanted wanted,
                                DIFFATTN_PROBLEM_PARAMETERS, DIFFATTN_EPILOGUE_PARAMETERS,
                                DIFFATTN_WINDOW_PARAMETERS) {
  const BackwardResult r = Implementation(dout, AttentionArguments DIFFATTN_PACK_ATTENTION,
                                          Saved{lse1, lse2, o, o2}, wanted);
  return {r.dq1, r.dq2, r.dk1, r.dk2, r.dv, r.dlambda, r.dnorm_weight, r.dmask};
}

template <auto Implementation>
Tensor decode(DIFFATTN_QUERIES_AND_KEYS, const Tensor& v, const Tensor& lam,
              std::optional<double> scale, std::optional<double> scale2,
              std::optional<int64_t> window, const OptionalTensor& mask,
              const OptionalTensor& key_starts, const OptionalTensor& key_lengths,
              const OptionalTensor& block_table, DIFFATTN_EPILOGUE_PARAMETERS,
              DIFFATTN_WINDOW_PARAMETERS) {
  const bool causal = true;
  const OptionalTensor cu_seqlens_q, cu_seqlens_k;
  AttentionArguments arguments DIFFATTN_PACK_ATTENTION;
  arguments.align_to_key_lengths = true;
  arguments.block_table = block_table;
  return Implementation(arguments);
}

template <auto Implementation>
Tensor attention_stats(DIFFATTN_QUERIES_AND_KEYS, const Tensor& lam, DIFFATTN_PROBLEM_PARAMETERS,
                       double sparse_threshold, DIFFATTN_WINDOW_PARAMETERS) {
  return Implementation(ProblemArguments DIFFATTN_PACK_PROBLEM, sparse_threshold);
}

template <auto Implementation>
SixTensors attention_stats_backward(const Tensor& dstats, DIFFATTN_QUERIES_AND_KEYS,
                                    const Tensor& lam, StatsWanted wanted,
                                    DIFFATTN_PROBLEM_PARAMETERS, DIFFATTN_WINDOW_PARAMETERS) {
  const BackwardResult r = Implementation(dstats, ProblemArguments DIFFATTN_PACK_PROBLEM, wanted);
  return {r.dq1, r.dq2, r.dk1, r.dk2, r.dlambda, r.dmask};
}

template <auto Implementation>
Tensor attention_map(DIFFATTN_QUERIES_AND_KEYS, const Tensor& lam, int64_t row_begin,
                     int64_t row_end, int64_t col_begin, int64_t col_end, int64_t rows,
                     int64_t cols, DIFFATTN_PROBLEM_PARAMETERS, DIFFATTN_WINDOW_PARAMETERS) {
  return Implementation(ProblemArguments DIFFATTN_PACK_PROBLEM,
                        MapGrid{row_begin, row_end, col_begin, col_end, rows, cols});
}

/// Registers one implementation of every operator but `attention`.
template <auto Forward, auto Recompute, auto Backward, auto Decode, auto Stats, auto StatsBackward,
          auto Map>
void implement(torch::Library& m) {
  m.impl("attention_forward", attention_forward<Forward>);
  m.impl("attention_recompute", attention_recompute<Recompute>);
  m.impl("attention_backward", attention_backward<Backward>);
  m.impl("decode", decode<Decode>);
  m.impl("attention_stats", attention_stats<Stats>);
  m.impl("attention_stats_backward", attention_stats_backward<StatsBackward>);
  m.impl("attention_map", attention_map<Map>);
}

}  // namespace entry

namespace call {

Tensor attention(const AttentionArguments& arguments);
ForwardResult attention_forward(const AttentionArguments& arguments, SavedOutputs save);
RecomputeResult attention_recompute(const AttentionArguments& arguments, const Tensor& lse1,
                                    const Tensor& lse2);
BackwardResult attention_backward(const Tensor& dout, const AttentionArguments& arguments,
                                  const Saved& saved, Wanted wanted);
Tensor decode(const AttentionArguments& arguments);
Tensor attention_stats(const ProblemArguments& arguments, double sparse_threshold);
BackwardResult attention_stats_backward(const Tensor& dstats, const ProblemArguments& arguments,
                                        StatsWanted wanted);
Tensor attention_map(const ProblemArguments& arguments, const MapGrid& grid);

}  // namespace call
}  // namespace diffattn::ops
