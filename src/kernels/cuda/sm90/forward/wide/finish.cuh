// SPDX-License-Identifier: Apache-2.0
//
// The end of a work item of wide/kernel.cuh, where each block holds one map. Each warp finishes its
// 16 rows. The two blocks
//   (1) divide o by the row sums of P and store lse,
//   (2) send each other half of their columns in float,
//   (3) each compute 128 columns of O = o1 - lambda o2, exchange sums of O^2 for the head norm, and
//       store o2, o, their rests and out.
//
// A warp receives [16, 128] floats, 8 KB: the first half in its quarter of the item's q buffer,
// which nobody reads any more, the second half in X. Then it uses both as output buffers for TMA.
#pragma once

#include "kernels/cuda/sm90/forward/finish.cuh"
#include "kernels/cuda/sm90/forward/wide/config.h"

namespace diffattn::cuda::sm90 {

template <class T>
struct WideFinish {
  using Config = WideConfig;
  static constexpr int kHalf = Config::kHalf;  // columns to finish; also registers of o

  const ForwardArguments<T>& args;
  const WarpRows rows;
  char* const memory;
  const uint32_t smem;
  const int slot, consumer, count;  // q buffer; consumer 0 or 1; number of the item
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  const uint32_t rank = ptx::cluster_rank();
  // Offsets of the warp's two buffers of kPartWarp bytes.
  const int low_at = Config::kQ + slot * Config::kQBytes + warp * Config::kPartWarp;
  const int high_at = Config::kX + (4 * consumer + warp) * Config::kPartWarp;
  const uint32_t x_full = smem + Config::kXFull + 8 * (4 * consumer + warp);

  /// o holds this map's 256 columns. After the exchange o[0 .. 63] is map 1 and o[64 .. 127] map 2
  /// of the 128 columns that this block finishes; O replaces map 1.
  __device__ __forceinline__ void run(float (&o)[kHalf], SoftmaxState& state,
                                      const float (&lambda)[2]) {
    float inverse[2], weight2[2];
    bool dead[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.sum[r] = quad_sum(state.sum[r]);
      dead[r] = state.sum[r] == 0.0f;
      inverse[r] = dead[r] ? 0.0f : __fdividef(1.0f, state.sum[r]);
      weight2[r] = dead[r] ? 0.0f : -lambda[r];
    }
    store_lse(state);
    multiply_rows(o, inverse);
    exchange(o);
    float squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) {
      const int r = i / 2 % 2;
      o[i] = fmaf(o[kHalf / 2 + i], weight2[r], o[i]);
      squares[r] = fmaf(o[i], o[i], squares[r]);
    }
    const auto bad = [&](int r) {
      return !(squares[r] + state.sum[r] < INFINITY) && rows.row_of(r) < rows.seq_q;
    };
    if (bad(0) || bad(1)) mark_for_repair(args, rows);
    send(o, squares, dead);
  }

  __device__ __forceinline__ void store_lse(const SoftmaxState& state) const {
    const Rows<float>& lse = rank == 0 ? args.lse1 : args.lse2;
    const float c = rank == 0 ? args.scale_log2 : args.scale2_log2;
    const int r = lane % 2, row = rows.row_of(r);
    if (lse.data == nullptr || (lane & 2) != 0 || row >= rows.seq_q) return;
    *lse.at(rows.batch, rows.q_begin + row, rows.head) = r == 0 ? state.lse(0, c) : state.lse(1, c);
  }

  /// Block 0 sends columns 128 .. 255 of map 1 and receives columns 0 .. 127 of map 2. Block 1
  /// sends columns 0 .. 127 of map 2 and receives columns 128 .. 255 of map 1.
  __device__ __forceinline__ void exchange(float (&o)[kHalf]) const {
    if (lane == 0) ptx::barrier_arrive_expect(x_full, 2 * Config::kPartWarp);
    ptx::barrier_wait(smem + Config::kXReady + 8 * consumer, count & 1);
    if (rank == 0) {
      send_half<kHalf / 2>(o);
      ptx::barrier_wait(x_full, count & 1);
      receive_half<kHalf / 2>(o);
    } else {
      send_half<0>(o);
      ptx::barrier_wait(x_full, count & 1);
      receive_half<0>(o);
    }
    __syncwarp();  // all lanes have read the received columns
  }

  template <int kFrom>
  __device__ __forceinline__ void send_half(const float (&o)[kHalf]) const {
    const uint32_t low = ptx::remote_address(smem + low_at + 16 * lane, rank ^ 1);
    const uint32_t high = ptx::remote_address(smem + high_at + 16 * lane, rank ^ 1);
    const uint32_t full = ptx::remote_address(x_full, rank ^ 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = kFrom + 4 * i;
      ptx::store_remote((i < 8 ? low : high) + 512 * (i % 8), full,
                        make_float4(o[at], o[at + 1], o[at + 2], o[at + 3]));
    }
  }

  template <int kTo>
  __device__ __forceinline__ void receive_half(float (&o)[kHalf]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float4 x =
          ptx::load_smem_float4(smem + (i < 8 ? low_at : high_at) + 16 * lane + 512 * (i % 8));
      o[kTo + 4 * i] = x.x, o[kTo + 4 * i + 1] = x.y;
      o[kTo + 4 * i + 2] = x.z, o[kTo + 4 * i + 3] = x.w;
    }
  }

  /// Stores o2, o, their rests and out for this block's columns.
  __device__ __forceinline__ void send(float (&o)[kHalf], const float (&squares)[2],
                                       const bool (&dead)[2]) {
    const bool has_o = args.o.data != nullptr, has_o2 = args.o2.data != nullptr;
    const HeadEpilogue& epilogue = args.epilogue;
    if (epilogue.norm) send_squares(squares);
    RowSender<T, kHalf, 2> sender{
        rows, memory + low_at, high_at - low_at, args.packed, 2 * static_cast<int>(rank), 0};
    const auto o_value = [&](int i) { return o[i]; };
    const auto o2_value = [&](int i) { return o[kHalf / 2 + i]; };
    if (has_o2) sender.send(args.o2_map, args.o2, o2_value);
    if (has_o) sender.send(args.o_map, args.o, o_value);
    if (args.o2_rest.data != nullptr) sender.send_rests(args.o2_rest, o2_value);
    if (args.o_rest.data != nullptr) sender.send_rests(args.o_rest, o_value);
    float factor[2] = {epilogue.out_scale, epilogue.out_scale};
    if (epilogue.norm) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float total = quad_sum(squares[r]) + other_squares(r);
        factor[r] *= 1.0f / sqrtf(total * (1.0f / Config::kValueDim) + epilogue.eps);
        if (dead[r]) factor[r] = 0.0f;
      }
      if (epilogue.weight != nullptr) {
        const float* gains = reinterpret_cast<const float*>(memory + Config::kGains) + rank * kHalf;
        float(&low)[kHalf / 2] = reinterpret_cast<float(&)[kHalf / 2]>(o);
        multiply_columns(low, gains);
      }
    }
    sender.send(args.out_map, args.out, [&](int i) { return o[i] * factor[i / 2 % 2]; });
  }

  /// Sends the rows' sums of O^2 over this block's columns to the other block.
  __device__ __forceinline__ void send_squares(const float (&squares)[2]) const {
    const int at = Config::kSquares + (4 * consumer + warp) * 64 + lane / 4 * 4;
    const uint32_t barrier = smem + Config::kSquaresFull + 8 * (4 * consumer + warp);
    if (lane == 0) ptx::barrier_arrive_expect(barrier, 64);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(squares[r]);
      if (lane % 4 != 0) continue;
      ptx::store_remote(ptx::remote_address(smem + at + 32 * r, rank ^ 1),
                        ptx::remote_address(barrier, rank ^ 1), __float_as_int(sum));
    }
  }

  /// Waits for the other block's sum of O^2 of this thread's row r and returns it.
  __device__ __forceinline__ float other_squares(int r) const {
    const uint32_t barrier = smem + Config::kSquaresFull + 8 * (4 * consumer + warp);
    ptx::barrier_wait(barrier, count & 1);
    const int at = Config::kSquares + (4 * consumer + warp) * 64 + lane / 4 * 4 + 32 * r;
    return __int_as_float(ptx::load_smem_int(smem + at));
  }
};

}  // namespace diffattn::cuda::sm90
