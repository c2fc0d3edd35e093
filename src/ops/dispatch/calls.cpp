// SPDX-License-Identifier: Apache-2.0
//
// Calls our own operators through the dispatcher.

#include "ops/dispatch/entry.h"

namespace diffattn::ops::call {
namespace {

/// Returns the handle of operator `name`. The function gives the type: any instance of the
/// operator's entry template.
template <class Function>
auto operator_handle(const char* name, Function*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

// The entry templates have a type only with an implementation. These are never called.
constexpr auto kAttention = [](const AttentionArguments&) -> Tensor { return {}; };
constexpr auto kForward = [](const AttentionArguments&, SavedOutputs) -> ForwardResult {
  return {};
};
constexpr auto kRecompute = [](const AttentionArguments&, const Tensor&,
                               const Tensor&) -> RecomputeResult { return {}; };
constexpr auto kBackward = [](const Tensor&, const AttentionArguments&, const Saved&,
                              Wanted) -> BackwardResult { return {}; };
constexpr auto kStats = [](const ProblemArguments&, double) -> Tensor { return {}; };
constexpr auto kStatsBackward = [](const Tensor&, const ProblemArguments&,
                                   StatsWanted) -> BackwardResult { return {}; };
constexpr auto kMap = [](const ProblemArguments&, const MapGrid&) -> Tensor { return {}; };

}  // namespace

#define DIFFATTN_PROBLEM_VALUES                                                               \
  a.scale, a.scale2, a.causal, a.window, a.mask, a.key_starts, a.key_lengths, a.cu_seqlens_q, \
      a.cu_seqlens_k
#define DIFFATTN_WINDOW_VALUES a.window_left, a.window_right
#define DIFFATTN_EPILOGUE_VALUES a.norm_weight, a.norm_eps, a.out_scale

Tensor attention(const AttentionArguments& a) {
  static const auto op = operator_handle("diffattn::attention", &entry::attention<kAttention>);
  return op.call(a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, DIFFATTN_PROBLEM_VALUES,
                 DIFFATTN_EPILOGUE_VALUES, DIFFATTN_WINDOW_VALUES);
}

ForwardResult attention_forward(const AttentionArguments& a, SavedOutputs save) {
  static const auto op =
      operator_handle("diffattn::attention_forward", &entry::attention_forward<kForward>);
  auto [out, lse1, lse2, o, o2] = op.call(
      a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, DIFFATTN_PROBLEM_VALUES, DIFFATTN_EPILOGUE_VALUES,
      save == SavedOutputs::kBoth, DIFFATTN_WINDOW_VALUES, save == SavedOutputs::kO);
  return {out, lse1, lse2, o, o2};
}

RecomputeResult attention_recompute(const AttentionArguments& a, const Tensor& lse1,
                                    const Tensor& lse2) {
  static const auto op =
      operator_handle("diffattn::attention_recompute", &entry::attention_recompute<kRecompute>);
  auto [out, o] =
      op.call(a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, lse1, lse2, DIFFATTN_PROBLEM_VALUES,
              DIFFATTN_EPILOGUE_VALUES, DIFFATTN_WINDOW_VALUES);
  return {out, o};
}

BackwardResult attention_backward(const Tensor& dout, const AttentionArguments& a,
                                  const Saved& saved, Wanted wanted) {
  static const auto op =
      operator_handle("diffattn::attention_backward", &entry::attention_backward<kBackward>);
  auto [dq1, dq2, dk1, dk2, dv, dlambda, dnorm_weight, dmask] = op.call(
      dout, a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, saved.lse1, saved.lse2, saved.o, saved.o2,
      wanted, DIFFATTN_PROBLEM_VALUES, DIFFATTN_EPILOGUE_VALUES, DIFFATTN_WINDOW_VALUES);
  return {dq1, dq2, dk1, dk2, dv, dlambda, dnorm_weight, dmask};
}

Tensor decode(const AttentionArguments& a) {
  static const auto op = operator_handle("diffattn::decode", &entry::decode<kAttention>);
  return op.call(a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, a.scale, a.scale2, a.window, a.mask,
                 a.key_starts, a.key_lengths, a.block_table, DIFFATTN_EPILOGUE_VALUES,
                 DIFFATTN_WINDOW_VALUES);
}

Tensor attention_stats(const ProblemArguments& a, double sparse_threshold) {
  static const auto op =
      operator_handle("diffattn::attention_stats", &entry::attention_stats<kStats>);
  return op.call(a.q1, a.q2, a.k1, a.k2, a.lambda, DIFFATTN_PROBLEM_VALUES, sparse_threshold,
                 DIFFATTN_WINDOW_VALUES);
}

BackwardResult attention_stats_backward(const Tensor& dstats, const ProblemArguments& a,
                                        StatsWanted wanted) {
  static const auto op = operator_handle("diffattn::attention_stats_backward",
                                         &entry::attention_stats_backward<kStatsBackward>);
  auto [dq1, dq2, dk1, dk2, dlambda, dmask] =
      op.call(dstats, a.q1, a.q2, a.k1, a.k2, a.lambda, wanted, DIFFATTN_PROBLEM_VALUES,
              DIFFATTN_WINDOW_VALUES);
  return {.dq1 = dq1,
          .dq2 = dq2,
          .dk1 = dk1,
          .dk2 = dk2,
          .dv = {},
          .dlambda = dlambda,
          .dnorm_weight = {},
          .dmask = dmask};
}

Tensor attention_map(const ProblemArguments& a, const MapGrid& grid) {
  static const auto op = operator_handle("diffattn::attention_map", &entry::attention_map<kMap>);
  return op.call(a.q1, a.q2, a.k1, a.k2, a.lambda, grid.row_begin, grid.row_end, grid.col_begin,
                 grid.col_end, grid.rows, grid.cols, DIFFATTN_PROBLEM_VALUES,
                 DIFFATTN_WINDOW_VALUES);
}

}  // namespace diffattn::ops::call
