// SPDX-License-Identifier: Apache-2.0
//
// The operators on meta and fake tensors: they check the arguments and return shapes without data.

#include "ops/dispatch/entry.h"
#include "ops/glue/allocate.h"
#include "ops/glue/checks.h"

namespace diffattn::ops::on_meta {
namespace {

ForwardResult forward(const AttentionArguments& a, SavedOutputs save) {
  check(a);
  return allocate_forward(a, save);
}

RecomputeResult recompute(const AttentionArguments& a, const Tensor& lse1, const Tensor& lse2) {
  check(a);
  check_lse(lse1, lse2, a);
  return allocate_recompute(a);
}

BackwardResult backward(const Tensor&, const AttentionArguments& a, const Saved&, Wanted wanted) {
  check(a);
  return allocate_backward(a, wanted);
}

Tensor decode(const AttentionArguments& a) { return forward(a, SavedOutputs::kNone).out; }

Tensor stats(const ProblemArguments& a, double) {
  check(a);
  return allocate_stats(a);
}

BackwardResult stats_backward(const Tensor&, const ProblemArguments& a, StatsWanted wanted) {
  check(a);
  return allocate_input_gradients(a, wanted[0], wanted[1], wanted[2], wanted[3], wanted[4],
                                  wanted[5]);
}

Tensor map(const ProblemArguments& a, const MapGrid& grid) {
  check(a);
  return allocate_map(a, grid);
}

}  // namespace

TORCH_LIBRARY_IMPL(diffattn, Meta, m) {
  entry::implement<forward, recompute, backward, decode, stats, stats_backward, map>(m);
}

}  // namespace diffattn::ops::on_meta
