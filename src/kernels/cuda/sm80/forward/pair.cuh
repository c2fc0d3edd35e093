// SPDX-License-Identifier: Apache-2.0
//
// sm80 forward (mma.sync) for Dv up to 128, where O of 32 rows fits into a warp's registers.
//
//   out = epilogue(softmax(scale q1 k1^T + mask) v - lambda softmax(scale2 q2 k2^T + mask) v)
//
// One block computes kBlockM = 64 rows of one (batch entry, head). Warps 0-1 compute map 1 and
// warps 2-3 map 2, each 32 rows, so that one ldmatrix.x4 of k or v feeds four mma instructions. Two
// cp.async stages of kBlockN keys alternate. The registers hold the scores of one "part" of a tile,
// kPart keys, at a time:
//
//   (1) load q1, q2 and the first stage of k1, k2, v
//   for each key tile that any row may see, while the next tile loads, for each part:
//     (2) s = q k^T                                    [32, kPart] per warp, float
//     (3) p = exp2(scale log2(e) s - m)                m starts as the first part's row maximum
//     (4) o += p v, l += sum p                         p rounded to T, o and l in float
//     (5) after the tile, if a thread's sum p > kRescaleSum: raise m and rescale l, o
//   (6) lse = m ln 2 + log l;  the warps of the two maps exchange half of their rows
//   (7) O = o1 / l1 - lambda o2;  out = epilogue(O)    rounded once
//
// Each warp scheduler has only two warps, which issue in order, so instructions and shared-memory
// reads between the matrix products cost time. Therefore quick_stage does not compute row maxima.
// If a thread's sum of p over one tile reaches kOverflowSum, the block starts again with
// careful_stage, which computes the maximum of every part. careful_stage also handles additive
// masks, scales <= 0, and partly visible tiles while some row of the warp has no m yet.
//
// A hidden column never affects a row. quick_stage multiplies its v by p = 0. If a hidden infinity
// or NaN makes O non-finite, the block starts again and skips zeros of p.
#pragma once

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/bias_tile.cuh"
#include "kernels/cuda/sm80/forward/arguments.cuh"
#include "kernels/cuda/sm80/forward/config.h"
#include "kernels/cuda/sm80/forward/pair_state.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/tile_order.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

/// Key ranges of one block. They live in shared memory, because the kernel has no free registers.
struct PairBounds {
  Sequence seq;
  int begin, end;            // keys that any row sees; begin is a multiple of kBlockN
  int full_begin, full_end;  // keys that every row sees; empty with a mask tensor
  bool quick;                // quick_stage is allowed: no additive mask and both scales > 0
  int unchecked_begin, unchecked_end;  // keys that load without bounds checks, in whole tiles

  template <class Config, class T>
  __device__ void set(const ForwardArguments<T>& args, const WorkTile& work) {
    seq = args.shape.sequence(work.b);
    const int row0 = work.tile * Config::kBlockM;
    const int last_row = min(row0 + Config::kBlockM, seq.seq_q) - 1;
    begin = max(0, seq.first_visible(row0)) / Config::kBlockN * Config::kBlockN;
    end = seq.end_visible(last_row);
    quick = args.shape.mask.kind != MaskKind::kAdditive && args.scale_log2 > 0.0f &&
            args.scale2_log2 > 0.0f;
    full_begin = seq.first_visible(last_row);
    full_end = args.shape.mask.kind == MaskKind::kNone ? seq.end_visible(row0) : -1;
    const bool unchecked = args.k_aligned && args.v_aligned &&
                           args.shape.head_dim == Config::kHeadDim &&
                           args.shape.value_dim == Config::kValueDim;
    unchecked_begin = seq.first_key;
    unchecked_end = unchecked ? end : -1;
  }

  __device__ bool all_full() const { return full_begin <= begin && end <= full_end; }
};

template <class T, class Config>
struct PairForward {
  static constexpr int kD = Config::kHeadDim, kDv = Config::kValueDim;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kPart = Config::kPart, kThreads = Config::kThreads;
  static constexpr int kParts = kBlockN / kPart;
  static constexpr float kRescaleSum = 1024.0f;  // m rises if a thread's tile sum of p exceeds it
  static constexpr float kOverflowSum = 3e4f;    // sum above which p may overflow float16 (65504)

  using State = PairState<kDv>;
  using Scores = Accumulator<2, kPart / 8>;
  using Probabilities = uint32_t[2][kPart / 16][4];  // p as A operands

  const ForwardArguments<T>& args;
  char* smem;
  const WorkTile work;
  const PairBounds& bounds;
  const Sequence& seq = bounds.seq;
  const int row0 = work.tile * kBlockM;
  const int lane = threadIdx.x % kWarpSize;
  const int map = threadIdx.x / (kThreads / 2);
  const int warp_row = threadIdx.x % (kThreads / 2) / kWarpSize * 32;
  const float factor = map == 0 ? args.scale_log2 : args.scale2_log2;

  T* const q_smem = reinterpret_cast<T*>(smem);            // [2, kBlockM, kD]
  T* const stages_smem = q_smem + 2 * Config::kQElements;  // [2] x {k1, k2, v}

  State state;
  bool redo;

  __device__ void run() {
    if (row0 >= seq.seq_q) return;
    from(0) = part_of<kD>(args.k1);
    from(1) = part_of<kD>(args.k2);
    from(2) = part_of<kDv>(args.v);
    load_q();  // (1)
    for (bool careful = false;; careful = true) {
      state.reset(row0 + warp_row, seq.seq_q);
      redo = false;
      if (bounds.begin < bounds.end) loop(careful);
      if (!careful && !bounds.all_full()) redo |= !state.finite();
      ptx::wait_copies<0>();
      // Also a barrier: all warps have finished reading the stages, which finish_pair reuses.
      if (__syncthreads_or(redo) == 0) break;
    }
    finish_pair<T, Config>(args, smem, work, seq, state);  // (6) (7)
  }

  /// Returns this thread's pointer into k1 (0), k2 (1) or v (2), which is stored in shared memory.
  /// It points to the first chunk that the thread would copy of a tile at key 0.
  __device__ const T*& from(int which) const {
    return reinterpret_cast<const T**>(smem + Config::kLoopBytes)[which * kThreads + threadIdx.x];
  }
  template <int kCols>
  __device__ const T* part_of(const Rows<const T>& rows) const {
    constexpr int kChunks = kCols / kChunk;
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    return rows.at(work.b, seq.k_begin + row, args.shape.kv_head(work.h)) +
           threadIdx.x % kChunks * kChunk;
  }

  __device__ void loop(bool careful) {
    load_stage(0, bounds.begin);
    int stage = 0;
    for (int n0 = bounds.begin; n0 < bounds.end; n0 += kBlockN, stage ^= 1) {
      ptx::wait_copies<0>();
      // All threads' copies of this stage have arrived, and no warp reads the other stage any more.
      __syncthreads();
      load_stage(stage ^ 1, n0 + kBlockN);
      if (has_words()) {
        store_word(stage, n0);
        __syncthreads();  // the visibility words of all rows are complete
      }
      const bool full = n0 >= bounds.full_begin && n0 + kBlockN <= bounds.full_end;
      const bool quick = bounds.quick && !careful;
      const bool skip_zeros =  // all threads of the block agree
          careful && __syncthreads_or(has_non_finite<kBlockN, kDv, kThreads>(v_smem(stage))) != 0;
      if (quick && full) {
        if (state.lacks_max) init_max(stage);
        quick_stage<false>(stage, n0);
      } else if (quick && !state.lacks_max) {
        quick_stage<true>(stage, n0);
      } else {
        careful_stage(stage, n0, skip_zeros);
      }
    }
  }

  __device__ T* k_smem(int stage) const { return stages_smem + stage * Config::kStageElements; }
  __device__ T* v_smem(int stage) const { return k_smem(stage) + 2 * Config::kKElements; }

  __device__ void load_q() {
    const int rows = seq.seq_q - row0;
    for (int i = 0; i < 2; ++i) {
      const Rows<const T>& q = i == 0 ? args.q1 : args.q2;
      load_tile<kBlockM, kD, kThreads>(
          q_smem + i * Config::kQElements,
          TileSource<T>{q.at(work.b, seq.q_begin + row0, work.h), q.seq_stride, 0, rows,
                        args.shape.head_dim, args.q_aligned});
    }
    ptx::commit_copies();  // a block without visible keys loads no stage but still waits for q
  }

  /// Starts loading keys [n0, n0 + kBlockN) and commits the group of copies, which may be empty.
  __device__ void load_stage(int stage, int n0) const {
    T* const k = k_smem(stage);
    if (n0 >= bounds.unchecked_begin && n0 + kBlockN <= bounds.unchecked_end) {
      load_unchecked<kD>(k, from(0) + n0 * args.k1.seq_stride, args.k1.seq_stride);
      load_unchecked<kD>(k + Config::kKElements, from(1) + n0 * args.k2.seq_stride,
                         args.k2.seq_stride);
      load_unchecked<kDv>(v_smem(stage), from(2) + n0 * args.v.seq_stride, args.v.seq_stride);
    } else if (n0 < bounds.end) {
      load_checked<kD>(k, args.k1, n0, args.shape.head_dim, args.k_aligned);
      load_checked<kD>(k + Config::kKElements, args.k2, n0, args.shape.head_dim, args.k_aligned);
      load_checked<kDv>(v_smem(stage), args.v, n0, args.shape.value_dim, args.v_aligned);
    }
    if (n0 < bounds.end) load_mask(stage, n0);
    ptx::commit_copies();
  }

  /// Copies a whole tile. Each thread keeps its chunk column and steps down the rows by a multiple
  /// of 8, which leaves the swizzle unchanged.
  template <int kCols>
  __device__ void load_unchecked(T* tile, const T* from, int64_t stride) const {
    constexpr int kChunks = kCols / kChunk, kAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kAtOnce % 8 == 0 && kBlockN % kAtOnce == 0);
    const uint32_t to = ptx::smem_address(tile) +
                        TileLayout<kCols>::offset(threadIdx.x / kChunks, threadIdx.x % kChunks);
#pragma unroll
    for (int i = 0; i < kBlockN / kAtOnce; ++i) {
      ptx::copy_16_or_zero(to + i * kAtOnce * kCols * 2, from + i * kAtOnce * stride, true);
    }
  }

  /// Copies the tile's rows that lie within the sequence and fills the others with 0.
  template <int kCols>
  __device__ void load_checked(T* tile, const Rows<const T>& rows, int n0, int cols,
                               bool aligned) const {
    load_tile_rolled<kBlockN, kCols, kThreads>(
        tile, TileSource<T>{rows.at(work.b, seq.k_begin + n0, args.shape.kv_head(work.h)),
                            rows.seq_stride, seq.first_key - n0, bounds.end - n0, cols, aligned});
  }

  __device__ bool has_words() const { return args.shape.mask.kind == MaskKind::kBoolean; }
  __device__ HeadMask mask() const { return {args.shape, seq, work.b, work.h}; }
  /// Returns the visibility words of the current tile, [kBlockM, kParts]; only with a boolean mask.
  __device__ uint32_t* words_smem() const {
    return reinterpret_cast<uint32_t*>(smem + Config::kSmemBytes);
  }
  /// Returns the mask bytes from which a thread computes visibility word `word` of a stage.
  __device__ char* slot_smem(int stage, int word) const {
    return smem + Config::kSmemBytes + Config::kWordBytes + stage * Config::kSlotBytes / 2 +
           word * MaskBytes::kSlot;
  }
  /// Starts copying the boolean mask's bytes, or prefetches an additive mask into L1.
  __device__ void load_mask(int stage, int n0) const {
    if (args.shape.mask.kind == MaskKind::kNone) return;
    const HeadMask head = mask();
    if (!has_words()) {
      return prefetch_bias<kBlockM, kBlockN, kThreads>(bias_smem(kBlockM), head, row0, n0);
    }
    const int word = ptx::reread_thread();
    if (word >= kBlockM * kParts) return;
    MaskBytes(head, row0 + word / kParts, n0 + word % kParts * kPart)
        .copy(ptx::smem_address(slot_smem(stage, word)));
  }
  __device__ void store_word(int stage, int n0) const {
    const int word = ptx::reread_thread();
    if (word >= kBlockM * kParts) return;
    const HeadMask head = mask();
    words_smem()[word] = MaskBytes(head, row0 + word / kParts, n0 + word % kParts * kPart)
                             .word(slot_smem(stage, word));
  }
  /// True if any row of the warp sees any key of the part under the boolean mask.
  __device__ bool any_seen(int part) const {
    return __any_sync(0xffffffffu, words_smem()[(warp_row + lane) * kParts + part] != 0) != 0;
  }

  /// Computes (2) for one part.
  __device__ void scores(Scores& s, int stage, int part) const {
    multiply_transposed<2, kPart, kD>(s, q_smem + map * Config::kQElements, warp_row,
                                      k_smem(stage) + map * Config::kKElements + part * kPart * kD);
  }

  /// Computes (4) for 16 keys: o += p v, with p of two 16-row fragments.
  __device__ void add_values(const uint32_t (&p)[2][4], int stage, int key) {
    using Layout = TileLayout<kDv>;
    const uint32_t values =
        ptx::smem_address(v_smem(stage)) + Layout::offset(lane % 16, 0, lane / 16) + key * kDv * 2;
#pragma unroll
    for (int j = 0; j < kDv / 16; ++j) {
      uint32_t v_reg[4];
      ptx::load_matrix_x4_transposed(v_reg, Layout::along(values, j * 2));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::mma_m16n8k16<T>(state.o[i][2 * j], p[i], v_reg[0], v_reg[1]);
        ptx::mma_m16n8k16<T>(state.o[i][2 * j + 1], p[i], v_reg[2], v_reg[3]);
      }
    }
  }

  /// Computes (3) for keys [16 k, 16 k + 16) of a part. Adds the unrounded p to `sum`.
  __device__ void exponentials(uint32_t (&p)[2][4], const Scores& s, int k, float (&sum)[2][2],
                               float scale) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float m_finite = State::finite_or_zero(state.m[i][r]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = ptx::exp2(s[i][2 * k + j][2 * r] * scale - m_finite);
          const float y = ptx::exp2(s[i][2 * k + j][2 * r + 1] * scale - m_finite);
          sum[i][r] += x;
          sum[i][r] += y;
          p[i][2 * j + r] = pack<T>(x, y);
        }
      }
    }
  }

  /// Processes a tile with the current m. kPartly: some row may see only a part of the keys.
  template <bool kPartly>
  __device__ void quick_stage(int stage, int n0) {
    float sum[2][2] = {};
#pragma unroll 1  // the scores of two parts would not fit into the registers
    for (int part = 0; part < kParts; ++part) {
      if (kPartly && has_words() && !any_seen(part)) continue;
      Scores s = {};
      scores(s, stage, part);
      if constexpr (kPartly) mask_scores(s, n0, part);
#pragma unroll
      for (int k = 0; k < kPart / 16; ++k) {
        uint32_t p[2][4];
        exponentials(p, s, k, sum, factor);
        add_values(p, stage, part * kPart + k * 16);
      }
    }
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        state.l[i][r] += sum[i][r];
        most = fmaxf(most, sum[i][r]);
        redo |= !(sum[i][r] < kOverflowSum);
      }
    }
    if (__any_sync(0xffffffffu, most > kRescaleSum)) state.raise_by_sums(sum);  // (5)
  }

  /// Sets the scores of hidden columns to -inf, even if they are NaN.
  __device__ void mask_scores(Scores& s, int n0, int part) const {
    static_assert(kPart == 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + i * 16 + r * 8 + lane / 4;
        mask_unseen(s[i], r,
                    has_words() ? words_smem()[row * kParts + part]
                                : visible_word(seq, row0 + row, n0 + part * kPart));
      }
    }
  }

  /// Initialises m from the scores of a tile's first part, which every row sees.
  __device__ void init_max(int stage) {
    Scores s = {};
    scores(s, stage, 0);
    state.raise(s, factor);
  }

  /// Processes a tile and updates the row maxima at every part. If `skip_zeros` (v holds an
  /// infinity or NaN), it skips the zeros of p.
  __device__ void careful_stage(int stage, int n0, bool skip_zeros) {
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      if (has_words() && !any_seen(part)) continue;
      const bool biased = args.shape.mask.kind == MaskKind::kAdditive;
      if (biased) load_biases(n0 + part * kPart);
      Scores s = {};
      scores(s, stage, part);
      scale(s);
      if (biased) {
        add_bias(s[0], bias_smem(warp_row));
        add_bias(s[1], bias_smem(warp_row + 16));
      } else {
        mask_scores(s, n0, part);
      }
      state.raise(s, 1.0f);
      float sum[2][2] = {};
      Probabilities p_reg;
#pragma unroll
      for (int k = 0; k < kPart / 16; ++k) {
        uint32_t p[2][4];
        exponentials(p, s, k, sum, 1.0f);
#pragma unroll
        for (int e = 0; e < 4; ++e) p_reg[0][k][e] = p[0][e], p_reg[1][k][e] = p[1][e];
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) state.l[0][r] += sum[0][r], state.l[1][r] += sum[1][r];
      const T* const values = v_smem(stage) + part * kPart * kDv;
      if (skip_zeros) {
        multiply_skipping_zeros<2, kDv, kPart>(state.o, p_reg, values);
      } else {
        multiply<2, kDv, kPart>(state.o, p_reg, values);
      }
    }
  }

  /// Returns row `row` of the biases of a part, [kBlockM, kBiasPitch]; only with an additive mask.
  __device__ float* bias_smem(int row) const {
    return reinterpret_cast<float*>(smem + Config::kSmemBytes) + row * kBiasPitch;
  }
  /// Loads the biases of a part. All warps must call it, because each loads 16 rows and the warps
  /// of both maps read them.
  __device__ void load_biases(int n0) const {
    const int row = ptx::reread_thread() / kWarpSize * 16;
    __syncthreads();  // all warps have read the previous biases
    load_bias<16>(bias_smem(row), mask(), row0 + row, n0);
    __syncthreads();  // the biases are complete
  }

  /// Multiplies the scores by scale * log2(e).
  __device__ void scale(Scores& s) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kPart / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[i][j][e] *= factor;
      }
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    pair_forward_kernel(const __grid_constant__ ForwardArguments<T> args, int tiles, int group) {
  extern __shared__ __align__(128) char smem[];
  __shared__ PairBounds bounds;
  WorkTile work = grouped_work_tile(static_cast<int>(blockIdx.x), args.shape.batch,
                                    args.shape.heads, tiles, group);
  work.tile = tiles - 1 - work.tile;  // last rows first: if causal, they see the most keys
  if (threadIdx.x == 0) bounds.set<Config>(args, work);
  __syncthreads();  // thread 0 has set the bounds
  PairForward<T, Config>{args, smem, work, bounds}.run();
}

}  // namespace diffattn::cuda::sm80
