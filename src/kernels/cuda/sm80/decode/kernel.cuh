// SPDX-License-Identifier: Apache-2.0
//
// Split-key decode (mma.sync): forward of a few query rows against many keys. The time goes into
// reading k1, k2 and v. Therefore a block reads them once for up to kRows (row, head) pairs that
// share them, and the keys are split over blocks and warps.
//
// A block computes packed rows r = (m, head of the group) of one (batch entry, kv head) against
// split_keys keys. A 16-row fragment holds 8 packed rows: rows 0-7 are map 1, rows 8-15 the same
// packed rows of map 2, so that one fragment of v serves both maps. Each warp w processes every
// kWarps-th tile of 16 keys:
//
//   for each of the warp's key tiles, while its next tiles load:
//     (1) s = [q1; 0] k1^T + [0; q2] k2^T              [16, 16], q in registers
//     (2) mask, online softmax, o += p v               p rounded to T, o in float
//   (3) merge the warps: m = max m_w, l = sum l_w 2^(m_w - m), o = sum o_w 2^(m_w - m)
//   (4) store m, l, o of both maps to the workspace; combine.cu merges the blocks. If one block has
//       all keys of its rows, it finishes them itself instead
#pragma once

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/decode/config.h"
#include "kernels/cuda/sm80/decode/partials.cuh"
#include "kernels/cuda/sm80/online_softmax.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::sm80 {

template <class T>
struct DecodeArguments {
  Shape shape;
  Rows<const T> q1, q2;           // [B, M, H, D]
  Rows<const T> k1, k2;           // [B, N, Hkv, D]
  Rows<const T> v;                // [B, N, Hkv, Dv]
  float scale_log2, scale2_log2;  // scale log2(e) of map 1 and map 2
  bool k_aligned, v_aligned;      // rows may be read in 16-byte chunks
  bool whole;                     // k1, k2 and v are aligned and as wide as the tiles
  bool q_whole;                   // q1 and q2 are aligned and as wide as the tiles
  Pages pages;                    // of k1, k2 and v
  bool old_keys_ready;            // all but the newest seq_q keys were written long ago
  bool one_split;                 // finish the rows here
  Rows<const float> lambda;       // [B, M, H]; this and the rest only for one_split
  HeadEpilogue epilogue;
  Rows<T> out;  // [B, M, H, Dv]
  Partials partials;
};

template <class T, class Config>
struct Decode {
  static constexpr int kD = Config::kHeadDim, kDv = Config::kValueDim, kRows = Config::kRows;
  static constexpr int kM = Config::kFragments, kKeys = Config::kKeys, kWarps = Config::kWarps;
  static constexpr int kStages = Config::kStages;
  static constexpr int kStep = kWarps * kKeys;  // keys from one tile of a warp to its next
  static constexpr bool kFinishes = kM == 1;    // two fragments leave no registers for it

  const DecodeArguments<T>& args;
  char* smem;
  const int b, kv_head, row0, split;
  const Sequence seq = args.shape.sequence(b);
  const int group = args.shape.heads / args.shape.kv_heads;
  const int end_row = min(row0 + kRows, seq.seq_q* group);
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;

  T* const stages_smem = reinterpret_cast<T*>(smem) + warp * kStages * Config::kStageElements;
  // After the loop: o [kWarps, 16 kM, kOPitch], then m and l, [kWarps, 16 kM] each.
  float* const o_smem = reinterpret_cast<float*>(smem);
  float* const m_smem = o_smem + kWarps * 16 * kM * Config::kOPitch;
  float* const l_smem = m_smem + kWarps * 16 * kM;

  uint32_t q_reg[kM][2][kD / 16][2];  // q1 and q2 of packed row lane / 4 of each fragment
  Accumulator<kM, kDv / 8> o_reg = {};
  OnlineSoftmax<kM> softmax;

  __device__ void run() {
    const UsedSplits used(seq, args.partials.split_keys);
    if (row0 >= seq.seq_q * group || split < used.begin || split >= used.end) {
      return ptx::wait_for_previous_kernel();  // this kernel must not end before the previous one
    }
    const int begin = split * args.partials.split_keys;
    const int end = min(begin + args.partials.split_keys, seq.end_key);
    const int first = begin + warp * kKeys;  // this warp's first tile of 16 keys
    [[maybe_unused]] Factors factors;
    if constexpr (kFinishes) {
      if (args.one_split) load_gain(factors);
    }
    load_first_stages(first, end);
    if constexpr (kFinishes) {
      if (args.one_split) load_lambda(factors);
    }
    softmax.reset();
    if (Config::kPlain || args.q_whole) {
      // These loads need no conversion, so the warp does not wait for q before its first use.
      load_q([](const T* q, int c) { return *reinterpret_cast<const uint32_t*>(q + c); });
    } else {
      load_q([this](const T* q, int c) {
        const int d = args.shape.head_dim;
        return pack<T>(c < d ? widen(q[c]) : 0.0f, c + 1 < d ? widen(q[c + 1]) : 0.0f);
      });
    }
#pragma unroll 1
    for (int n0 = first, stage = 0; n0 < end; n0 += kStep) {
      ptx::wait_copies<kStages - 1>();
      __syncwarp();  // all lanes' copies of this stage have arrived
      step(stage, n0, end);
      __syncwarp();  // all lanes have read this stage
      load_stage(stage, n0 + kStages * kStep, end);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    ptx::wait_copies<0>();
    __syncthreads();  // all warps have read their stages; o_smem reuses them
    store_results();
    __syncthreads();  // all warps have written their results
    if constexpr (kFinishes) {
      if (args.one_split) return finish_rows(factors);
    }
    merge();  // (3) (4)
  }

  /// Starts loading the first keys and waits for the previous kernel. If the old keys are ready, it
  /// loads those while the previous kernel still computes the newest ones.
  __device__ void load_first_stages(int first, int end) const {
    const int old_end = args.old_keys_ready ? seq.end_key - seq.seq_q : 0;
    int stage = 0;
#pragma unroll 1
    for (; stage < kStages && first + stage * kStep + kKeys <= old_end; ++stage) {
      load_stage(stage, first + stage * kStep, end);
    }
    ptx::wait_for_previous_kernel();
#pragma unroll 1
    for (; stage < kStages; ++stage) load_stage(stage, first + stage * kStep, end);
  }

  __device__ int query_of(int row) const { return Config::kPlain ? 0 : row / group; }
  __device__ int head_of(int row) const {
    return kv_head * group + (Config::kPlain ? row : row % group);
  }

  /// Loads q into registers, with 0 for rows from end_row on. `two(q, c)` returns elements c and
  /// c + 1 of row q, packed.
  template <class Two>
  __device__ void load_q(const Two& two) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const int row = min(row0 + i * 8 + lane / 4, end_row - 1);
      const bool exists = row0 + i * 8 + lane / 4 < end_row;
#pragma unroll
      for (int map = 0; map < 2; ++map) {
        const T* const from =
            (map == 0 ? args.q1 : args.q2).at(b, seq.q_begin + query_of(row), head_of(row));
#pragma unroll
        for (int k = 0; k < kD / 16; ++k) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int c = k * 16 + half * 8 + lane % 4 * 2;
            q_reg[i][map][k][half] = exists ? two(from, c) : 0;
          }
        }
      }
    }
  }

  /// Starts loading keys [n0, n0 + 16) and commits the group of copies, which may be empty.
  __device__ void load_stage(int stage, int n0, int end) const {
    T* const k_smem = stages_smem + stage * Config::kStageElements;
    T* const v_smem = k_smem + 2 * kKeys * kD;
    [[maybe_unused]] const int d = args.shape.head_dim, dv = args.shape.value_dim;
    if (n0 < end) {
      const TilePlace place = place_of(n0);
      if (Config::kPlain || (args.whole && n0 >= seq.first_key && n0 + kKeys <= end)) {
        // A hidden row of v must be 0: its p is 0, and 0 * inf would be NaN. The general kernel
        // masks in `step`.
        const int first = Config::kPlain ? seq.first_visible(0) - n0 : 0;
        const int last = Config::kPlain ? end - n0 : kKeys;
        load_whole_rows<kD>(k_smem, args.k1, place, first, last);
        load_whole_rows<kD>(k_smem + kKeys * kD, args.k2, place, first, last);
        load_whole_rows<kDv>(v_smem, args.v, place, first, last);
      } else if constexpr (!Config::kPlain) {
        load_rows<kD>(k_smem, args.k1, place, n0, end, d, args.k_aligned);
        load_rows<kD>(k_smem + kKeys * kD, args.k2, place, n0, end, d, args.k_aligned);
        load_rows<kDv>(v_smem, args.v, place, n0, end, dv, args.v_aligned);
      }
    }
    ptx::commit_copies();
  }

  /// Where 16 keys lie: a batch entry, or a page, and the first row in it.
  struct TilePlace {
    int batch, row;
  };
  /// Returns the place of keys [n0, n0 + 16). n0 is a multiple of 16, so they share a page.
  __device__ TilePlace place_of(int n0) const {
    if (args.pages.table == nullptr) return {b, seq.k_begin + n0};
    const int size = static_cast<int>(args.pages.size);
    return {args.pages.table[b * args.pages.stride + n0 / size], n0 % size};
  }

  /// Copies 16 rows to tile [16, kCols], and zeros instead of those outside [first, last). A lane
  /// copies the same chunk of every 64 columns in every fourth row. The swizzle then has only two
  /// values, and all other offsets are compile-time constants.
  template <int kCols>
  __device__ void load_whole_rows(T* tile, const Rows<const T>& rows, TilePlace place, int first,
                                  int last) const {
    static_assert(kCols % 64 == 0 && kKeys == 16);
    constexpr int kPitch = kCols * 2;  // bytes
    const uint32_t tile_smem = ptx::smem_address(tile);
    const uint32_t even = tile_smem + TileLayout<kCols>::offset(lane / 8, lane % 8);
    const uint32_t odd = tile_smem + TileLayout<kCols>::offset(lane / 8 + 4, lane % 8);
    const T* from = rows.at(place.batch, place.row + lane / 8, kv_head) + lane % 8 * kChunk;
#pragma unroll
    for (int i = 0; i < 4; ++i, from += 4 * rows.seq_stride) {
      const bool inside = lane / 8 + 4 * i >= first && lane / 8 + 4 * i < last;
#pragma unroll
      for (int c = 0; c < kCols / 64; ++c) {
        const uint32_t to = (i % 2 == 0 ? even : odd) + i / 2 * 8 * kPitch + c * 128;
        ptx::copy_16_or_zero(to, from + c * 64, inside);
      }
    }
  }

  /// Copies rows [n0, n0 + 16) to tile [16, kCols]. Writes padding as 0 without reading it.
  template <int kCols>
  __device__ void load_rows(T* tile, const Rows<const T>& rows, TilePlace place, int n0, int end,
                            int cols, bool aligned) const {
    constexpr int kChunks = kCols / kChunk;
    constexpr int kRowsAtOnce = kWarpSize / kChunks;
    static_assert(kWarpSize % kChunks == 0);
    const T* const any = rows.at(place.batch, place.row, kv_head);
    const uint32_t tile_smem = ptx::smem_address(tile);
    const int chunk = lane % kChunks;
    // Not unrolled, because the offsets of all rows would not fit into the registers.
    const T* from = any + lane / kChunks * rows.seq_stride + chunk * kChunk;
#pragma unroll 1
    for (int i = 0; i < kKeys; i += kRowsAtOnce, from += kRowsAtOnce * rows.seq_stride) {
      const int row = i + lane / kChunks;
      const bool inside = n0 + row >= seq.first_key && n0 + row < end && chunk * kChunk < cols;
      load_chunk(tile_smem + TileLayout<kCols>::offset(row, chunk), from, inside,
                 cols - chunk * kChunk, aligned, any);
    }
  }

  __device__ void step(int stage, int n0, int end) {
    const T* const k_smem = stages_smem + stage * Config::kStageElements;
    const T* const v_smem = k_smem + 2 * kKeys * kD;
    // (1) If registers allow, each map has its own accumulator, half of which stays 0. This halves
    // the chain of dependent mma instructions.
    constexpr bool kTwoSums = kM * kDv <= 128;
    Accumulator<kM, 2> s_reg = {}, second_reg = {};
    Accumulator<kM, 2>& s2_reg = kTwoSums ? second_reg : s_reg;
    scores(s_reg, 0, k_smem);
    scores(s2_reg, 1, k_smem + kKeys * kD);
    const bool all_visible =
        Config::kPlain
            ? n0 >= seq.first_visible(0) && n0 + kKeys <= end
            : HeadMask(args.shape, seq, b, 0)
                  .all_visible(query_of(row0), query_of(end_row - 1) + 1, n0, n0 + kKeys);
    scale_and_mask(s_reg, s2_reg, n0, end, all_visible);
    softmax.update(s_reg, 1.0f, o_reg);  // (2)
    uint32_t p_reg[kM][1][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) round_to_operand<T>(p_reg[i], s_reg[i]);
    if (!Config::kPlain && !all_visible && __any_sync(0xffffffffu, has_non_finite(v_smem))) {
      multiply_skipping_zeros<kM, kDv, kKeys>(o_reg, p_reg, v_smem);
    } else {
      multiply<kM, kDv, kKeys>(o_reg, p_reg, v_smem);
    }
  }

  /// Computes s += [q1; 0] k1^T (map 0) or s += [0; q2] k2^T (map 1) over the 16 keys of a tile.
  __device__ void scores(Accumulator<kM, 2>& s, int map, const T* k_smem) const {
    const uint32_t tile = ptx::smem_address(k_smem);
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      uint32_t k_reg[4];
      const int row = lane % 8 + lane / 16 * 8;
      ptx::load_matrix_x4(k_reg, tile + TileLayout<kD>::offset(row, k * 2, lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        const uint32_t low = q_reg[i][map][k][0], high = q_reg[i][map][k][1];
        const uint32_t a[4] = {map == 0 ? low : 0, map == 0 ? 0 : low, map == 0 ? high : 0,
                               map == 0 ? 0 : high};
        ptx::mma_m16n8k16<T>(s[i][0], a, k_reg[0], k_reg[1]);
        ptx::mma_m16n8k16<T>(s[i][1], a, k_reg[2], k_reg[3]);
      }
    }
  }

  __device__ float bias_of(int row, int n, int end) const {
    if constexpr (Config::kPlain) {
      return n >= seq.first_visible(0) && n < end ? 0.0f : -INFINITY;
    } else {
      if (row >= end_row) return -INFINITY;
      return HeadMask(args.shape, seq, b, head_of(row)).bias(query_of(row), n);
    }
  }

  /// Multiplies the scores by scale * log2(e) and masks them. Entries 0-1 of a fragment are map 1.
  /// Entries 2-3 are map 2, which this function reads from s2.
  __device__ void scale_and_mask(Accumulator<kM, 2>& s, const Accumulator<kM, 2>& s2, int n0,
                                 int end, bool all_visible) const {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const int row = row0 + i * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float bias = 0.0f;
          if (!all_visible) {
            const int n = n0 + j * 8 + lane % 4 * 2 + e;
            bias = bias_of(row, n, end);
          }
          const bool visible = bias != -INFINITY;  // if hidden, -inf overwrites even a NaN score
          s[i][j][e] = visible ? s[i][j][e] * args.scale_log2 + bias : -INFINITY;
          s[i][j][e + 2] = visible ? s2[i][j][e + 2] * args.scale2_log2 + bias : -INFINITY;
        }
      }
    }
  }

  /// True if this lane finds an infinity or a NaN in its words of a v tile.
  __device__ bool has_non_finite(const T* tile) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(tile);
    bool found = false;
    for (int i = lane; i < kKeys * kDv / 2; i += kWarpSize) found |= any_non_finite<T>(words[i]);
    return found;
  }

  /// Writes this warp's m, l and o of the rows that exist to shared memory for `merge`.
  __device__ void store_results() {
    softmax.finish();
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      if (row0 + i * 8 + lane / 4 >= end_row) continue;
#pragma unroll
      for (int map = 0; map < 2; ++map) {
        const int row = (warp * kM + i) * 16 + map * 8 + lane / 4;
        m_smem[row] = softmax.m[i][map];
        l_smem[row] = softmax.l[i][map];
#pragma unroll
        for (int j = 0; j < kDv / 8; ++j) {
          float* const to = o_smem + row * Config::kOPitch + j * 8 + lane % 4 * 2;
          *reinterpret_cast<float2*>(to) =
              make_float2(o_reg[i][j][2 * map], o_reg[i][j][2 * map + 1]);
        }
      }
    }
  }

  /// Merges the warps' states and stores them. No other work is left to hide its latency, so a warp
  /// works on two rows at once and a lane on four columns.
  __device__ void merge() {
    const int pitch = args.partials.pitch;  // v's padding columns are 0, so o's are 0 as well
#pragma unroll 2
    for (int i = warp; i < 2 * (end_row - row0); i += kWarps) {
      const int row = i / 2, map = i % 2, r = row / 8 * 16 + map * 8 + row % 8;
      float m = -INFINITY, l = 0.0f, weight[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) m = fmaxf(m, m_smem[w * 16 * kM + r]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const int at = w * 16 * kM + r;
        weight[w] = m == -INFINITY ? 0.0f : ptx::exp2(m_smem[at] - m);
        l += l_smem[at] * weight[w];
      }
      const int64_t slot =
          args.partials.slot(map, split, b, query_of(row0 + row), head_of(row0 + row));
      if (lane == 0) args.partials.m[slot] = m, args.partials.l[slot] = l;
      for (int c = lane * 4; c < pitch; c += kWarpSize * 4) {
        float4 sum = {};
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float4 x =
              *reinterpret_cast<const float4*>(o_smem + (w * 16 * kM + r) * Config::kOPitch + c);
          if (weight[w] == 0.0f) continue;
          sum.x += x.x * weight[w], sum.y += x.y * weight[w];
          sum.z += x.z * weight[w], sum.w += x.w * weight[w];
        }
        *reinterpret_cast<float4*>(args.partials.o + slot * pitch + c) = sum;
      }
    }
  }

  /// Lambda of the warp's first row and this lane's columns of the gain, for `finish_rows`. They
  /// are loaded before the loop, so that their latency is hidden.
  static constexpr int kQuads = (kDv + 127) / 128;
  struct Factors {
    float lambda, gain[kQuads][4];
  };
  __device__ void load_gain(Factors& factors) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        factors.gain[i][e] =
            args.epilogue.gain(min(i * 128 + lane * 4 + e, args.shape.value_dim - 1));
      }
    }
  }
  __device__ void load_lambda(Factors& factors) const {
    const int row = min(row0 + warp, end_row - 1);
    factors.lambda = *args.lambda.at(b, seq.q_begin + query_of(row), head_of(row));
  }

  /// Merges the warps' states and finishes the rows, each by one warp.
  __device__ void finish_rows(const Factors& factors) {
    const int width = args.shape.value_dim;
    for (int row = warp; row < end_row - row0; row += kWarps) {
      const int query = seq.q_begin + query_of(row0 + row), h = head_of(row0 + row);
      float weight[2][kWarps];  // of each warp's o, divided by l
      bool dead = false;
#pragma unroll
      for (int map = 0; map < 2; ++map) {
        const int r = row / 8 * 16 + map * 8 + row % 8;
        float m = -INFINITY, l = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) m = fmaxf(m, m_smem[w * 16 * kM + r]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          weight[map][w] = m == -INFINITY ? 0.0f : ptx::exp2(m_smem[w * 16 * kM + r] - m);
          l += l_smem[w * 16 * kM + r] * weight[map][w];
        }
        dead = l == 0.0f;
        const float inverse = dead ? 0.0f : __fdividef(1.0f, l);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) weight[map][w] *= inverse;
      }
      // A row that sees no column has o = 0; an infinite lambda would turn it into NaN.
      const float lambda = dead           ? 0.0f
                           : row < kWarps ? factors.lambda
                                          : *args.lambda.at(b, query, h);
      float o[kQuads][4], squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int c = i * 128 + lane * 4;
        float o2[4];
        merged(o[i], row, 0, c, weight[0]);
        merged(o2, row, 1, c, weight[1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          o[i][e] -= lambda * o2[e];
          squares += o[i][e] * o[i][e];
        }
      }
      const HeadEpilogue& epilogue = args.epilogue;
      const float mean = __fdividef(warp_sum(squares), static_cast<float>(width));
      const float rstd = dead ? 0.0f : epilogue.norm ? rsqrtf(mean + epilogue.eps) : 1.0f;
      T* const out = args.out.at(b, query, h);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int c = i * 128 + lane * 4 + e;
          if (c < width) out[c] = narrow<T>(o[i][e] * rstd * factors.gain[i][e]);
        }
      }
    }
  }

  /// Sums columns c .. c + 3 of the warps' o of a packed row; 0 beyond kDv. Padding columns of v
  /// are 0, so those of o are as well.
  __device__ void merged(float (&sum)[4], int row, int map, int c,
                         const float (&weight)[kWarps]) const {
    const int r = row / 8 * 16 + map * 8 + row % 8;
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = 0.0f;
    if (c >= kDv) return;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 x =
          *reinterpret_cast<const float4*>(o_smem + (w * 16 * kM + r) * Config::kOPitch + c);
      if (weight[w] == 0.0f) continue;
      sum[0] += x.x * weight[w], sum[1] += x.y * weight[w];
      sum[2] += x.z * weight[w], sum[3] += x.w * weight[w];
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    decode_kernel(const __grid_constant__ DecodeArguments<T> args, int row_tiles, int splits) {
  extern __shared__ __align__(128) char smem[];
  if (!args.old_keys_ready) ptx::wait_for_previous_kernel();
  // combine_kernel reads the norm weight without a wait of its own. If the old keys are ready, then
  // so are the weights.
  ptx::launch_dependents();
  // Consecutive blocks compute the row tiles of the same keys, so that all but the first find them
  // in L2. The next blocks compute the next kv head, whose keys are adjacent in memory.
  const int heads = args.shape.kv_heads, index = static_cast<int>(blockIdx.x / row_tiles);
  const int row0 = static_cast<int>(blockIdx.x % row_tiles) * Config::kRows;
  Decode<T, Config>{args,          smem, index / (heads * splits),
                    index % heads, row0, index / heads % splits}
      .run();
}

}  // namespace diffattn::cuda::sm80
