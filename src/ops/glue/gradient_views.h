// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "ops/glue/arguments.h"
#include "ops/glue/view_of.h"

/// Points kernel parameters at allocated results.
namespace diffattn::ops {

/// Returns a view of the bytes behind the `width` elements of each row of o or o2, which hold the
/// rounding errors; null if the rows have no such bytes.
template <class Void>
View<Void> rests_of(const View<Void>& saved, const Tensor& tensor, int64_t width) {
  if (tensor.size(-1) == width) return {};
  const int64_t bytes = tensor.element_size();
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return {static_cast<Byte*>(saved.data) + width * bytes, saved.batch_stride * bytes,
          saved.seq_stride * bytes, saved.head_stride * bytes};
}

inline void set_outputs(ForwardParams& params, const ForwardResult& result, SavedOutputs save) {
  params.out = mutable_view_of(result.out);
  params.lse1 = mutable_rows_of(result.lse1);
  params.lse2 = mutable_rows_of(result.lse2);
  if (save == SavedOutputs::kNone) return;
  params.o = mutable_view_of(result.o);
  if (save == SavedOutputs::kO) return;
  params.o2 = mutable_view_of(result.o2);
  params.o_rest = rests_of(params.o, result.o, params.value_dim);
  params.o2_rest = rests_of(params.o2, result.o2, params.value_dim);
}

/// Sets the results of the forward that the backward reads.
inline void set_saved(BackwardParams& params, const Saved& saved) {
  params.lse1 = rows_of(saved.lse1);
  params.lse2 = rows_of(saved.lse2);
  if (saved.o.dim() == 1) return;  // not saved
  params.o = view_of(saved.o);
  if (saved.o2.dim() == 1) return;
  params.o2 = view_of(saved.o2);
  params.o_rest = rests_of(params.o, saved.o, params.value_dim);
  params.o2_rest = rests_of(params.o2, saved.o2, params.value_dim);
}

/// Gradients that are not wanted stay null.
inline void set_input_gradients(ProblemGradients& params, const BackwardResult& r, int64_t heads,
                                const StatsWanted& wanted) {
  const auto view = [](bool wants, const Tensor& gradient) {
    return wants ? mutable_view_of(gradient) : View<void>{};
  };
  params.dq1 = view(wanted[0], r.dq1);
  params.dq2 = view(wanted[1], r.dq2);
  params.dk1 = view(wanted[2], r.dk1);
  params.dk2 = view(wanted[3], r.dk2);
  if (wanted[4]) params.dlambda = lambda_view(r.dlambda.mutable_data_ptr(), r.dlambda, heads);
  if (wanted[5]) {
    params.dmask = r.dmask.mutable_data_ptr();
    params.dmask_strides = mask_strides(r.dmask);
  }
}

inline void set_gradients(BackwardParams& params, const BackwardResult& r, int64_t heads,
                          const Wanted& wanted) {
  set_input_gradients(params, r, heads,
                      {wanted[0], wanted[1], wanted[2], wanted[3], wanted[5], wanted[7]});
  if (wanted[4]) params.dv = mutable_view_of(r.dv);
  if (wanted[6]) params.dnorm_weight = r.dnorm_weight.mutable_data_ptr();
}

}  // namespace diffattn::ops
