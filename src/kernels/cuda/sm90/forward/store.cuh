// SPDX-License-Identifier: Apache-2.0
//
// Stores a warp's 16 output rows: rounds the accumulators into shared memory, from which TMA writes
// them to global memory. A TMA box always has 16 rows and would overwrite the next packed sequence,
// so the warp itself stores the last rows of a packed sequence.
#pragma once

#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/rest.cuh"

namespace diffattn::cuda::sm90 {

/// Rows [row, row + 16) of one (batch entry, head); `row` within its sequence.
struct WarpRows {
  int row, seq_q, q_begin, batch, head;

  /// Returns how many of the 16 rows exist; 0 or less if none.
  __device__ int count() const { return min(16, seq_q - row); }
  /// Returns this thread's row g (r = 0) or g + 8 (r = 1).
  __device__ int row_of(int r) const { return row + threadIdx.x % 32 / 4 + 8 * r; }
  template <class T>
  __device__ T* first(const Rows<T>& rows) const {
    return rows.at(batch, q_begin + row, head);
  }
};

/// Returns the rests of two floats (what rounding to T loses, see rest.cuh) in the two low bytes of
/// a register. Unlike `rest_of` it rounds down, so a rest is just 8 bits of the float. An exact tie
/// that rounds down decodes one unit in the last place of T too low. The rest of a float that
/// overflows float16 is meaningless.
template <class T>
__device__ __forceinline__ uint32_t rest_pair(float low, float high) {
  constexpr int kShift = 8 - kRestShift<T>;
  return __byte_perm(__float_as_uint(low) << kShift, __float_as_uint(high) << kShift, 0x0051);
}

/// Stores [16, kWidth] fragments of one warp through its kStages buffers in shared memory, which it
/// uses in turn.
template <class T, int kWidth, int kStages>
struct RowSender {
  static constexpr int kChunks = kWidth / 8;  // 16-byte chunks of a row

  const WarpRows& rows;
  char* const stages;
  const int stage_step;  // bytes between two buffers
  const bool packed;
  const int block;  // first column / 64
  int turn;         // number of the next send
  const int lane = threadIdx.x % 32;

  /// Stores a fragment. value(i) returns accumulator entry i.
  template <class Value>
  __device__ __forceinline__ void send(const CUtensorMap& map, const Rows<T>& to, Value value) {
    send_pairs(map, to, [&](int k) { return pack<T>(value(2 * k), value(2 * k + 1)); });
  }

  /// Stores a fragment. pair(k) returns entries 2k and 2k + 1, rounded and packed.
  template <class Pair>
  __device__ __forceinline__ void send_pairs(const CUtensorMap& map, const Rows<T>& to, Pair pair) {
    char* const stage = next_stage();
    const int row = lane % 16, half = lane / 16;
    const uint32_t row_smem = ptx::smem_address(stage) + row * 128;
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
      const int chunk = (2 * (i % 4) + half) ^ (row % 8);
      ptx::store_matrix_x4(row_smem + i / 4 * 2048 + chunk * 16, pair(4 * i), pair(4 * i + 1),
                           pair(4 * i + 2), pair(4 * i + 3));
    }
    ptx::fence_async_proxy();
    __syncwarp();
    if (packed && rows.count() < 16) {
      store_part(stage, to);
    } else if (lane == 0 && rows.count() > 0) {
      ptx::store_box(map, ptx::smem_address(stage), 0, rows.head, rows.q_begin + rows.row, block,
                     packed ? 0 : rows.batch);
    }
    if (lane == 0) ptx::commit_stores();
  }

  /// Stores the rests of value(i) as bytes. stmatrix moves 16-bit elements, two per register: the
  /// lane's two bytes of one group of 8 columns, and its two bytes of the next group. The reads
  /// below separate the two groups again.
  template <class Value>
  __device__ __forceinline__ void send_rests(const Rows<int8_t>& to, Value value) {
    constexpr int kRowChunks = kWidth / 16;
    char* const stage = next_stage();
    const auto bytes = [&](int groups, int r) {  // columns 16 groups .. 16 groups + 15 of row r
      const int i = 8 * groups + 2 * r;
      return __byte_perm(rest_pair<T>(value(i), value(i + 1)),
                         rest_pair<T>(value(i + 4), value(i + 5)), 0x5410);
    };
    {
      const int row = lane % 16;
      const uint32_t row_smem = ptx::smem_address(stage) + row * kWidth;
#pragma unroll
      for (int i = 0; i < kRowChunks; i += 2) {
        ptx::store_matrix_x4(row_smem + ((i + lane / 16) ^ row % kRowChunks) * 16, bytes(i, 0),
                             bytes(i, 1), bytes(i + 1, 0), bytes(i + 1, 1));
      }
    }
    __syncwarp();
    constexpr int kStep = 32 / kRowChunks;
    const int column = lane % kRowChunks, first = lane / kRowChunks;
    uint4 x[16 / kStep];
#pragma unroll
    for (int i = 0; i < 16 / kStep; ++i) {  // issues all loads before the first use
      const int row = first + i * kStep;
      x[i] =
          *reinterpret_cast<const uint4*>(stage + row * kWidth + (column ^ row % kRowChunks) * 16);
    }
    int8_t* const at = rows.first(to) + first * to.seq_stride + block * 64 + column * 16;
#pragma unroll
    for (int i = 0; i < 16 / kStep; ++i) {
      if (first + i * kStep >= rows.count()) continue;
      *reinterpret_cast<uint4*>(at + i * kStep * to.seq_stride) = {
          __byte_perm(x[i].x, x[i].y, 0x5410), __byte_perm(x[i].z, x[i].w, 0x5410),
          __byte_perm(x[i].x, x[i].y, 0x7632), __byte_perm(x[i].z, x[i].w, 0x7632)};
    }
    __syncwarp();  // all lanes have read the buffer before the warp writes it again
    if (lane == 0) ptx::commit_stores();
  }

 private:
  /// Returns the next buffer, once TMA has read what it held kStages sends ago.
  __device__ __forceinline__ char* next_stage() {
    if (lane == 0) ptx::wait_stores_read<kStages - 1>();
    __syncwarp();
    char* const stage = stages + turn % kStages * stage_step;
    ++turn;
    return stage;
  }

  /// Stores the existing rows of a buffer by the warp instead of TMA.
  __device__ __forceinline__ void store_part(const char* stage, const Rows<T>& to) {
    const int column = lane % kChunks;
#pragma unroll 1
    for (int row = lane / kChunks; row < rows.count(); row += 32 / kChunks) {
      const int at = column / 8 * 2048 + row * 128 + ((column % 8) ^ (row % 8)) * 16;
      *reinterpret_cast<uint4*>(rows.first(to) + row * to.seq_stride + block * 64 + column * 8) =
          *reinterpret_cast<const uint4*>(stage + at);
    }
    __syncwarp();  // all lanes have read the buffer before the warp writes it again
  }
};

}  // namespace diffattn::cuda::sm90
