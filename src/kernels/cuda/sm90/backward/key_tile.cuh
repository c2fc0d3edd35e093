// SPDX-License-Identifier: Apache-2.0
//
// The parts that kernel.cuh and wide/kernel.cuh share: the assignment of key tiles to blocks, the
// TMA loads, the mask, and the store of dk and dv.
#pragma once

#include <cuda.h>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/ordered_access.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/sm90/backward/tile.cuh"
#include "kernels/cuda/sm90/mask_biases.h"
#include "kernels/cuda/sm90/mask_columns.cuh"
#include "kernels/cuda/sm90/mask_words.h"

namespace diffattn::cuda::sm90 {

/// The parameter of the main kernels. Coordinates of the tensor maps are (64 columns, head, row,
/// column block, batch).
template <class T>
struct BackwardArguments {
  CUtensorMap q1, q2, d_o;  // boxes of 64 rows
  CUtensorMap k1, k2, v;    // boxes of kBlockN rows; v: kValueRows
  Shape shape;
  TileNumbers tiles;
  TileNumbers units;
  int tile_count, unit_count;  // number of tile indices per kv head, of unit indices per head
  int heads_in_cache;          // kv heads whose data fit into the L2 cache
  const char* stats;           // [H, unit_count, kStatBytes]
  float* dq_sums;              // [H, unit_count, 2 maps, 4 warps, D / 8, 32 lanes, 4]
  int* dq_done;       // [H, unit_count, kDqWriters]: 1 + the tile that added last (kDeterministic)
  int* needs_repair;  // set to 1 if the repair kernels must recompute all gradients
  KeyWords words;     // boolean mask
  MaskBiases biases;  // additive mask
  Rows<T> dk1, dk2;   // [B, N, Hkv, D]
  Rows<T> dv;         // [B, N, Hkv, Dv]
  float scale, scale2;
  float scale_log2, scale2_log2;
};

template <class T, class Config, bool kDeterministic>
struct KeyTile {
  using C = Config;
  static constexpr bool kTakesWords = C::kHeadDim == 64;  // mask tensors require D = 64

  const BackwardArguments<T>& args;
  const uint32_t smem;
  const uint32_t barriers = smem + C::kBarrierAt;
  // The reductions tell the compiler that these values are uniform in a warp.
  const int w = __reduce_max_sync(0xffffffffu, threadIdx.x / 128);
  const int warp = __reduce_max_sync(0xffffffffu, threadIdx.x / 32) & 3;
  const int lane = threadIdx.x % 32;
  const int row = 16 * warp + lane / 4;  // this thread's first key of the warpgroup's 64

  int b = 0, kv_head = 0, tile = 0, group = 1;
  int q_begin = 0, k_begin = 0, seq_k = 0, first_unit = 0;
  int begin = 0, end = 0, start = 0;  // units of a head that see the tile; the first to process
  int full_begin = 0, full_end = 0;   // units whose rows all see every key of the warpgroup
  int tile_full_begin = 0, tile_full_end = 0;  // units whose rows all see every key of the tile
  int diagonal_row = 0;              // causal: rows before it do not see the tile's first key
  int next_begin = 0, next_end = 0;  // units that the next key tile adds to
  int items = 0;                     // units that see the tile, of all heads of the kv head

  // --- Assignment of tiles

  /// Finds this block's tile and the units that see it. Returns false if the tile has no keys.
  ///
  /// Blocks are ordered by group of kv heads, then by tile, then by head. Under a causal mask, more
  /// rows see the earlier tiles, so the tiles with most work run first. kDeterministic: the last
  /// tile runs first. Each tile then waits only for one that started before it and is ahead of it
  /// at every unit.
  __device__ bool find_tile() {
    const Shape& shape = args.shape;
    const bool packed = args.tiles.cu_seqlens != nullptr;
    const int all_heads = packed ? shape.kv_heads : shape.kv_heads * shape.batch;
    const int count = packed ? args.tile_count : args.tiles.per_sequence;
    const int per_group = args.heads_in_cache * count;
    const int block = static_cast<int>(blockIdx.x) / C::kCluster;
    const int g = block / per_group;
    const int rest = block - g * per_group;
    const int heads = min(args.heads_in_cache, all_heads - g * args.heads_in_cache);
    int number = rest / heads;
    const int head = g * args.heads_in_cache + rest - number * heads;
    if constexpr (kDeterministic) number = count - 1 - number;
    if (packed) {
      b = args.tiles.sequence(number, shape.batch);
      kv_head = head;
      tile = number - uniform(args.tiles.first(b));
    } else {
      b = head / shape.kv_heads;
      kv_head = head - b * shape.kv_heads;
      tile = number;
    }
    const Sequence seq = shape.sequence(b);
    const int n0 = tile * C::kBlockN;
    if (n0 >= seq.seq_k) return false;
    group = shape.heads / shape.kv_heads;
    q_begin = uniform(seq.q_begin);
    k_begin = uniform(seq.k_begin);
    seq_k = uniform(seq.seq_k);
    first_unit = uniform(args.units.first(b));
    const UnitRange some = units_that_see(seq, n0, C::kBlockN);
    const UnitRange all = units_that_see_all(seq, n0 + C::kKeyShift * w, 64);
    const UnitRange tile_full = units_that_see_all(seq, n0, C::kBlockN);
    diagonal_row = n0 - seq.diagonal;
    begin = uniform(some.begin);
    end = uniform(some.end);
    full_begin = uniform(all.begin);
    full_end = uniform(all.end);
    if (kTakesWords && args.shape.mask.kind != MaskKind::kNone) full_begin = full_end = end;
    tile_full_begin = uniform(tile_full.begin);
    tile_full_end = uniform(tile_full.end);
    start = begin;
    items = (end - begin) * group;
    if constexpr (kDeterministic) {
      const UnitRange next = units_that_see(seq, n0 + C::kBlockN, C::kBlockN);
      next_begin = uniform(next.begin);
      next_end = uniform(next.end);
    } else if (!shape.bounded && items > 0) {
      // Start at different units, so that concurrent tiles add to different units of dq.
      start = begin + 2 * tile % (end - begin);
    }
    if (threadIdx.x == 0) {
      const int first = max(0, min(C::kBlockN, seq.first_key - n0));
      const int last = max(0, min(C::kBlockN, seq.end_key - n0));
      ptx::store_smem_int(smem + C::kKeyRangeAt, first | last << 16);
    }
    return true;
  }

  __device__ static int uniform(int x) {
    return static_cast<int>(__reduce_max_sync(0xffffffffu, static_cast<unsigned>(x)));
  }

  // --- Loads. Lane 0 of each warp of warpgroup 1 issues its part

  __device__ void load_keys() const {
    const uint32_t full = barriers + C::kKvFull;
    const int at = k_begin + tile * C::kBlockN;
    const int batch = args.tiles.cu_seqlens == nullptr ? b : 0;
    if (warp == 0) {
      ptx::barrier_arrive_expect(full, 2 * C::kKBytes + C::kValueBlocks * C::kVBlockBytes);
      ptx::load_box(smem + C::kKAt, args.k1, full, 0, kv_head, at, 0, batch);
    } else if (warp == 1) {
      ptx::load_box(smem + C::kKAt + C::kKBytes, args.k2, full, 0, kv_head, at, 0, batch);
    } else if (warp == 2) {
      ptx::load_box(smem + C::kVAt, args.v, full, 0, kv_head, at, 0, batch);
    }
  }

  /// Loads item `it`, which is unit `unit` of head `h` of the group, into stage it % 2.
  __device__ void load_item(int it, int h, int unit) const {
    const uint32_t stage = it & 1;
    const uint32_t full = barriers + C::kFull + 8 * stage;
    const uint32_t to = smem + C::kStageAt + stage * C::kStageBytes;
    const int head = kv_head * group + h, at = q_begin + unit * C::kBlockM;
    const int batch = args.tiles.cu_seqlens == nullptr ? b : 0;
    if (warp == 0) {
      if constexpr (C::kItems > 0) {
        ptx::store_smem_int(smem + C::kItemAt + 4 * (it & (C::kItems - 1)), h << 20 | unit);
      }
      ptx::barrier_arrive_expect(full, C::kStageBytes + kStatBytes);
      ptx::load_box(to, args.q1, full, 0, head, at, 0, batch);
    } else if (warp == 1) {
      ptx::load_box(to + C::kQBytes, args.q2, full, 0, head, at, 0, batch);
    } else if (warp == 2) {
      ptx::load_box(to + 2 * C::kQBytes, args.d_o, full, 0, head, at, 0, batch);
    } else {
      const int64_t number = static_cast<int64_t>(head) * args.unit_count + first_unit + unit;
      ptx::load_bytes(smem + C::kStatAt + stage * kStatBytes, args.stats + number * kStatBytes,
                      kStatBytes, full);
    }
  }

  /// Advances (h, unit) to the next item of the tile.
  __device__ void step(int& h, int& unit) const {
    if (++unit == end) unit = begin;
    if (unit == start) ++h;
  }

  // --- The mask

  /// Writes -inf to the scores of hidden keys. Requests the repair if any score is not finite: the
  /// products would multiply a hidden NaN or infinity by p = 0 or ds = 0, which gives NaN.
  __device__ void mask(float (&s)[32], int unit, int it = 0) const {
    flag_non_finite(s);
    if (kTakesWords && args.words.data != nullptr) return mask_unseen(s, unit, it);
    const int first = C::kKeyShift * w + row;  // this thread's keys: first and first + 8
    const int shift = diagonal_row - unit * C::kBlockM - 2 * (lane % 4);
    if (args.shape.bounded) mask_columns<true>(s, first + shift, first + shift + 8);
    if (args.shape.window != kFarAway) {
      const int end = first + shift + args.shape.window;
      mask_columns<false>(s, end, end + 8);
    }
    const int keys = ptx::load_smem_int(smem + C::kKeyRangeAt);
    const int begin_key = keys & 0xffff, end_key = keys >> 16;
    if (begin_key == 0 && end_key == C::kBlockN) return;
    mask_where(s,
               [&](int r, int) { return first + 8 * r < begin_key || first + 8 * r >= end_key; });
  }

  /// Applies the words of a boolean mask, which include the causal bounds. `it` selects the head,
  /// since heads may have different masks.
  __device__ void mask_unseen(float (&s)[32], int unit, int it) const {
    const int h = head_of(it);
    const uint2* const first =
        args.words.data + b * args.words.batch_stride + h * args.words.head_stride +
        static_cast<int64_t>(unit) * args.words.keys + tile * C::kBlockN + C::kKeyShift * w + row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint2 words = __ldg(first + 8 * r);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t seen = (half == 0 ? words.x : words.y) >> (2 * (lane % 4));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if ((seen & (1u << (i / 2 * 8 + i % 2))) == 0) {
            s[16 * half + i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
          }
        }
      }
    }
  }

  /// Returns the head of item `it`; valid while kItemAt holds the item.
  __device__ int head_of(int it) const {
    int h = 0;
    if constexpr (C::kItems > 0) {
      h = ptx::load_smem_int(smem + C::kItemAt + 4 * (it & (C::kItems - 1))) >> 20;
    }
    return kv_head * group + h;
  }

  /// Returns the address of this lane's first piece of an additive mask (bias_pieces.cuh) for item
  /// `it`, which is unit `unit` of its head.
  __device__ const uint4* biases_of(int unit, int it) const {
    const MaskBiases& all = args.biases;
    const int block = (tile * C::kBlockN + C::kKeyShift * w) / MaskBiases::kRows + warp;
    return all.data + b * all.batch_stride + head_of(it) * all.head_stride +
           unit * all.column_stride + block * all.row_stride + lane;
  }

  /// Writes -inf where hidden(r, c) is true, for key row + 8r and the c-th query from the thread's
  /// first one.
  template <class Hidden>
  __device__ static void mask_where(float (&s)[32], Hidden hidden) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (hidden(r, 8 * i + e)) s[4 * i + 2 * r + e] = -INFINITY;
        }
      }
    }
  }

  /// Requests the repair if any x is infinite or NaN: only then is x * 0 not 0.
  template <int kN>
  __device__ void flag_non_finite(const float (&x)[kN]) const {
    float zero[4] = {};
#pragma unroll
    for (int i = 0; i < kN; ++i) zero[i % 4] = fmaf(x[i], 0.0f, zero[i % 4]);
    if (zero[0] + zero[1] + (zero[2] + zero[3]) != 0.0f) *args.needs_repair = 1;
  }

  // --- Results

  /// Returns this warp's progress word for unit `number` of dq. `rank`: the block in its cluster.
  __device__ int* dq_done(int number, int rank = 0) const {
    return args.dq_done + static_cast<int64_t>(number) * kDqWriters + 8 * rank + 4 * w + warp;
  }

  /// Stores this warp's 16 rows of a gradient times `scale`: keys n to n + 15 of the sequence,
  /// columns from `column` on. The rows pass through shared memory, 64 columns at a time, so that
  /// the warp stores whole 128-byte lines. `buffer` and buffer + buffer_step are the warp's buffers
  /// of 16 rows of 128 bytes.
  template <int kN>
  __device__ void store_rows(const Rows<T>& out, const float (&x)[kN], int n, int column,
                             float scale, uint32_t buffer, uint32_t buffer_step) const {
    if (out.data == nullptr) return;
    const auto at = [&](int piece, int r, int chunk) {
      return buffer + piece % 2 * buffer_step + r * 128 + ((chunk ^ (r & 7)) << 4);
    };
#pragma unroll
    for (int piece = 0; piece < kN / 32; ++piece) {
      const float* const y = x + 32 * piece;
      __syncwarp();  // all lanes have read the buffer's previous contents
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const auto pair = [&](int i) {
          return pack<T>(y[8 * t + 2 * i] * scale, y[8 * t + 2 * i + 1] * scale);
        };
        ptx::store_matrix_x4(at(piece, lane % 16, 2 * t + lane / 16), pair(0), pair(1), pair(2),
                             pair(3));
      }
      __syncwarp();  // all rows are written
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int r = 4 * j + lane / 8;
        const int4 chunk = ptx::load_smem_int4(at(piece, r, lane % 8));
        if (n + r >= seq_k) continue;
        T* const to = out.at(b, k_begin + n + r, kv_head) + column + 64 * piece + 8 * (lane % 8);
        *reinterpret_cast<int4*>(to) = chunk;
      }
    }
  }
};

}  // namespace diffattn::cuda::sm90
