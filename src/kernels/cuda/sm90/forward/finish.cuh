// SPDX-License-Identifier: Apache-2.0
//
// The end of a forward work item. Each warp finishes its 16 rows:
//
//   lse = approx_max scale + log l;  O = o1 / l1 - lambda o2 / l2;  out = epilogue(O)
//
// in float, with one rounding at the store. l is the row sum of P, `approx_max` the approximate row
// maximum (softmax.cuh). A warp whose rows hold a value that is not finite marks their 64-row tile
// for the repair kernel: a sum may have overflowed, or a hidden key may hold a NaN or an infinity,
// which times P = 0 is NaN.
#pragma once

#include "kernels/cuda/ptx/max_abs_pair.cuh"
#include "kernels/cuda/sm90/forward/arguments.cuh"
#include "kernels/cuda/sm90/forward/config.h"
#include "kernels/cuda/sm90/forward/softmax.cuh"
#include "kernels/cuda/sm90/forward/store.cuh"

namespace diffattn::cuda::sm90 {

/// Marks the 64-row tile of `rows` for the repair kernel.
template <class T>
__device__ inline void mark_for_repair(const ForwardArguments<T>& args, const WarpRows& rows) {
  const int32_t* const cu_seqlens = args.shape.cu_seqlens_q;
  int64_t tile = rows.row / kConsumerRows;
  int64_t head = rows.head;
  if (args.packed) {
    tile += first_tile_index<kConsumerRows>(cu_seqlens, rows.batch);
  } else {
    head += static_cast<int64_t>(rows.batch) * args.shape.heads;
  }
  ptx::wait_for_previous_kernel();  // clear_kernel has set all marks to 0
  args.state.repair_marks[head * args.state.marks_per_head + tile] = 1;
}

/// Stores lse1 and lse2 of a quad's two rows; each of the four lanes stores one value.
template <class T>
__device__ __forceinline__ void store_lse(const ForwardArguments<T>& args, const WarpRows& rows,
                                          const SoftmaxState& state1, const SoftmaxState& state2) {
  if (args.lse1.data == nullptr) return;
  const int r = threadIdx.x % 2;
  const bool second = threadIdx.x & 2;
  const float lse1 = r == 0 ? state1.lse(0, args.scale_log2) : state1.lse(1, args.scale_log2);
  const float lse2 = r == 0 ? state2.lse(0, args.scale2_log2) : state2.lse(1, args.scale2_log2);
  const int row = rows.row_of(r);
  if (row >= rows.seq_q) return;
  const Rows<float>& lse = second ? args.lse2 : args.lse1;
  *lse.at(rows.batch, rows.q_begin + row, rows.head) = second ? lse2 : lse1;
}

/// Multiplies columns by the head norm's weights, gains [2 kN].
template <int kN>
__device__ __forceinline__ void multiply_columns(float (&o)[kN], const float* gains) {
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const float2 gain = *reinterpret_cast<const float2*>(gains + 8 * i + 2 * (threadIdx.x % 4));
    o[4 * i] *= gain.x, o[4 * i + 1] *= gain.y;
    o[4 * i + 2] *= gain.x, o[4 * i + 3] *= gain.y;
  }
}

/// Marks the tile if size0 or size1, of the thread's rows g and g + 8, is infinite or NaN.
template <class T>
__device__ __forceinline__ void check_rows(const ForwardArguments<T>& args, const WarpRows& rows,
                                           float size0, float size1) {
  const auto bad = [&](int r, float size) {
    return !(size < INFINITY) && rows.row_of(r) < rows.seq_q;
  };
  if (bad(0, size0) || bad(1, size1)) mark_for_repair(args, rows);
}

/// Applies the epilogue to O and stores `out`. `squares`: this thread's part of the rows' sums of
/// O^2. `dead`: the row sees no key.
template <class T, class Sender, int kN>
__device__ __forceinline__ void send_out(const ForwardArguments<T>& args, Sender& sender,
                                         const float* gains, float (&o)[kN],
                                         const float (&squares)[2], const bool (&dead)[2]) {
  const HeadEpilogue& epilogue = args.epilogue;
  float factor[2] = {epilogue.out_scale, epilogue.out_scale};
  if (epilogue.norm) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] *= 1.0f / sqrtf(quad_sum(squares[r]) * (0.5f / kN) + epilogue.eps);
      if (dead[r]) factor[r] = 0.0f;
    }
    if (epilogue.weight != nullptr) multiply_columns(o, gains);
  }
  sender.send(args.out_map, args.out, [&](int i) { return o[i] * factor[i / 2 % 2]; });
}

/// Row sums must be below this: `__fdividef` returns 0 for divisors above 2^126.
inline constexpr float kLargestSum = 0x1p126f;

/// The end of an item whose outputs are out and lse only, without head norm:
/// out = o1 factor1 + o2 factor2. It takes fewer instructions than the general `finish_rows` and
/// has fewer branches.
template <class T, int kDv, int kOutStages>
struct PlainFinish {
  const ForwardArguments<T>& args;
  const WarpRows rows;
  float factor1[2], factor2[2];  // factor2 lacks -lambda until `send`

  /// Computes the factors and stores lse while the last product with v runs. factor1 is NaN if a
  /// row sum is too large.
  __device__ __forceinline__ void prepare(SoftmaxState& state1, SoftmaxState& state2) {
    const float scale = args.epilogue.out_scale;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state1.sum[r] = quad_sum(state1.sum[r]);
      state2.sum[r] = quad_sum(state2.sum[r]);
      factor1[r] = state1.sum[r] == 0.0f ? 0.0f : __fdividef(scale, state1.sum[r]);
      factor2[r] = __fdividef(scale, state2.sum[r]);
      if (!(state1.sum[r] + state2.sum[r] < kLargestSum)) factor1[r] = NAN;
    }
    store_lse(args, rows, state1, state2);
  }

  /// Rounds and stores `out`. `item`: number of items finished before.
  __device__ __forceinline__ void send(char* stages, int item, const float (&o1)[kDv / 2],
                                       const float (&o2)[kDv / 2], const float (&lambda)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // a row that sees no key gives 0 even if lambda is infinite
      factor2[r] = factor1[r] == 0.0f ? 0.0f : -lambda[r] * factor2[r];
    }
    uint32_t largest[2] = {0, 0};
    RowSender<T, kDv, kOutStages> sender{rows, stages, 16 * kDv * 2, args.packed, 0, item};
    sender.send_pairs(args.out_map, args.out, [&](int k) {
      const int r = k % 2;
      const uint32_t pair = pack<T>(fmaf(o2[2 * k], factor2[r], o1[2 * k] * factor1[r]),
                                    fmaf(o2[2 * k + 1], factor2[r], o1[2 * k + 1] * factor1[r]));
      largest[r] = ptx::max_abs_pair<T>(largest[r], pair);
      return pair;
    });
    const auto size = [&](int r) { return any_non_finite<T>(largest[r]) ? INFINITY : 0.0f; };
    check_rows(args, rows, size(0), size(1));
  }
};

/// Computes O in o1 and stores all wanted outputs. `lambda`: of this thread's two rows. `item`:
/// number of items finished before.
template <class T, int kDv, int kOutStages>
__device__ __forceinline__ void finish_rows(const ForwardArguments<T>& args, const WarpRows& rows,
                                            char* stages, const float* gains, int item,
                                            float (&o1)[kDv / 2], float (&o2)[kDv / 2],
                                            SoftmaxState& state1, SoftmaxState& state2,
                                            const float (&lambda)[2]) {
  if (args.plain) {
    PlainFinish<T, kDv, kOutStages> plain{args, rows};
    plain.prepare(state1, state2);
    return plain.send(stages, item, o1, o2, lambda);
  }
  float inverse1[2], inverse2[2], weight2[2], squares[2] = {0.0f, 0.0f};
  bool dead[2];  // the row sees no key: O = 0 even if lambda is infinite
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state1.sum[r] = quad_sum(state1.sum[r]);
    state2.sum[r] = quad_sum(state2.sum[r]);
    dead[r] = state1.sum[r] == 0.0f;
    inverse1[r] = dead[r] ? 0.0f : __fdividef(1.0f, state1.sum[r]);
    inverse2[r] = dead[r] ? 0.0f : __fdividef(1.0f, state2.sum[r]);
    weight2[r] = dead[r] ? 0.0f : -lambda[r] * inverse2[r];
  }
  store_lse(args, rows, state1, state2);
  const bool has_o = args.o.data != nullptr, has_o2 = args.o2.data != nullptr;
  const bool has_rest = args.o_rest.data != nullptr, has_rest2 = args.o2_rest.data != nullptr;
  const int sends = 1 + has_o + has_o2 + has_rest + has_rest2;
#pragma unroll
  for (int i = 0; i < kDv / 2; ++i) {
    const int r = i / 2 % 2;
    o1[i] = fmaf(o2[i], weight2[r], o1[i] * inverse1[r]);
    squares[r] = fmaf(o1[i], o1[i], squares[r]);
  }
  const auto size = [&](int r) {
    return state1.sum[r] + state2.sum[r] < kLargestSum ? squares[r] : INFINITY;
  };
  check_rows(args, rows, size(0), size(1));

  RowSender<T, kDv, kOutStages> sender{rows, stages, 16 * kDv * 2, args.packed, 0, sends * item};
  const auto o_value = [&](int i) { return o1[i]; };
  const auto o2_value = [&](int i) { return o2[i] * inverse2[i / 2 % 2]; };
  if (has_o2) sender.send(args.o2_map, args.o2, o2_value);
  if (has_o) sender.send(args.o_map, args.o, o_value);
  if (has_rest2) sender.send_rests(args.o2_rest, o2_value);
  if (has_rest) sender.send_rests(args.o_rest, o_value);
  send_out(args, sender, gains, o1, squares, dead);
}

/// `finish_rows` for recompute.cuh, where o already is O. `offset`: infinite for a row that sees no
/// key.
template <class T, int kDv, int kOutStages>
__device__ __forceinline__ void finish_known_rows(const ForwardArguments<T>& args,
                                                  const WarpRows& rows, char* stages,
                                                  const float* gains, int item, float (&o)[kDv / 2],
                                                  const float (&offset)[2]) {
  float squares[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kDv / 2; ++i) squares[i / 2 % 2] = fmaf(o[i], o[i], squares[i / 2 % 2]);
  check_rows(args, rows, squares[0], squares[1]);
  const bool has_o = args.o.data != nullptr, has_rest = args.o_rest.data != nullptr;
  RowSender<T, kDv, kOutStages> sender{rows,        stages, 16 * kDv * 2,
                                       args.packed, 0,      (1 + has_o + has_rest) * item};
  const auto o_value = [&](int i) { return o[i]; };
  if (has_o) sender.send(args.o_map, args.o, o_value);
  if (has_rest) sender.send_rests(args.o_rest, o_value);
  const bool dead[2] = {offset[0] == INFINITY, offset[1] == INFINITY};
  send_out(args, sender, gains, o, squares, dead);
}

}  // namespace diffattn::cuda::sm90
