// SPDX-License-Identifier: Apache-2.0
//
// Forward with warp-wide matrix instructions where the outputs of 32 rows fit into a warp's
// registers (Dv up to 128). One block computes kBlockM query rows of one (batch entry, head), each
// warp 32 of them for one map, so that a fragment of k or v feeds four products:
//
//   (1) load q of both maps and the first stage of k1, k2, v
//   for each stage of keys that any row may see (the next one is loading meanwhile), in parts:
//     (2) s = q k^T
//     (3) p = exp2(scale log2(e) s - m)                m: a score of the row's first keys
//     (4) o += p v, l += sum p                         p rounded to T, o and l in float
//     (5) where sums have outgrown m: m, l, o rescaled
//   (6) lse = m ln 2 + log l;  warps of the two maps exchange half of their rows
//   (7) O = o1 / l1 - lambda o2;  out = epilogue(O)    one rounding
//
// A warp issues in order and only two of them fit beside each other, so what counts is how many
// instructions and reads of shared memory stand between the products: there is no maximum per part.
// Scores that leave m behind by more than kHopeless within one stage make the block start again
// with a maximum for every part. Stages with an additive mask, and the first ones that a row sees
// partly, are done that way too, see careful_stage. Columns that a row may not see never reach it,
// as in kernel.cuh: where their values made an output that is not finite, the block starts again
// and leaves them out one by one.
#pragma once

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/bias_tile.cuh"
#include "kernels/cuda/sm80/forward/arguments.cuh"
#include "kernels/cuda/sm80/forward/config.h"
#include "kernels/cuda/sm80/forward/pair_state.cuh"
#include "kernels/cuda/sm80/order.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

/// What is the same for all rows of a block. In shared memory: there are no registers for it.
struct PairBounds {
  Sequence seq;
  int begin, end;              // keys that any row sees, from a multiple of the stage on
  int full_begin, full_end;    // stages within are seen by every row; none under a mask
  bool quick;                  // no biases, and no scale that turns maxima around
  int whole_begin, whole_end;  // stages within need no checks when they are loaded

  template <class Config, class T>
  __device__ void set(const ForwardArguments<T>& args, const BlockPlace& place) {
    seq = args.shape.sequence(place.b);
    const int row0 = place.tile * Config::kBlockM;
    const int last_row = min(row0 + Config::kBlockM, seq.seq_q) - 1;
    begin = max(0, seq.first_visible(row0)) / Config::kBlockN * Config::kBlockN;
    end = seq.end_visible(last_row);
    quick = args.shape.mask.kind != MaskKind::kAdditive && args.scale_log2 > 0.0f &&
            args.scale2_log2 > 0.0f;
    full_begin = seq.first_visible(last_row);
    full_end = args.shape.mask.kind == MaskKind::kNone ? seq.end_visible(row0) : -1;
    const bool whole = args.k_aligned && args.v_aligned &&
                       args.shape.head_dim == Config::kHeadDim &&
                       args.shape.value_dim == Config::kValueDim;
    whole_begin = seq.first_key;
    whole_end = whole ? end : -1;
  }

  __device__ bool all_full() const { return full_begin <= begin && end <= full_end; }
};

template <class T, class Config>
struct PairForward {
  static constexpr int kD = Config::kHeadDim, kDv = Config::kValueDim;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kPart = Config::kPart, kThreads = Config::kThreads;
  static constexpr int kParts = kBlockN / kPart;
  static constexpr float kLimit = 1024.0f;  // sums of a stage above it move m
  static constexpr float kHopeless = 3e4f;  // and above it may not fit into 16 bits

  using State = PairState<kDv>;
  using Scores = Accumulator<2, kPart / 8>;
  using Probabilities = uint32_t[2][kPart / 16][4];  // as operands

  const ForwardArguments<T>& args;
  char* smem;
  const BlockPlace place;
  const PairBounds& bounds;
  const Sequence& seq = bounds.seq;
  const int row0 = place.tile * kBlockM;
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
      if (__syncthreads_or(redo) == 0) break;  // everyone is done: stages become rows of O
    }
    finish_pair<T, Config>(args, smem, place, seq, state);  // (6) (7)
  }

  /// This thread's part of the first rows of a stage at key 0, of k1, k2 and v.
  __device__ const T*& from(int which) const {
    return reinterpret_cast<const T**>(smem + Config::kLoopBytes)[which * kThreads + threadIdx.x];
  }
  template <int kCols>
  __device__ const T* part_of(const Rows<const T>& rows) const {
    constexpr int kChunks = kCols / kChunk;
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    return rows.at(place.b, seq.k_begin + row, args.shape.kv_head(place.h)) +
           threadIdx.x % kChunks * kChunk;
  }

  __device__ void loop(bool careful) {
    load_stage(0, bounds.begin);
    int stage = 0;
    for (int n0 = bounds.begin; n0 < bounds.end; n0 += kBlockN, stage ^= 1) {
      ptx::wait_copies<0>();
      __syncthreads();  // this stage has landed for every thread, and nobody reads the other
      load_stage(stage ^ 1, n0 + kBlockN);
      if (has_words()) {
        store_word(stage, n0);
        __syncthreads();  // those of all rows are there
      }
      const bool full = n0 >= bounds.full_begin && n0 + kBlockN <= bounds.full_end;
      const bool quick = bounds.quick && !careful;
      const bool skip_zeros =  // a vote: every thread of the block agrees
          careful && __syncthreads_or(has_non_finite<kBlockN, kDv, kThreads>(v_smem(stage))) != 0;
      if (quick && full) {
        if (state.fresh) find_reference(stage);
        quick_stage<false>(stage, n0);
      } else if (quick && !state.fresh) {
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
          TileSource<T>{q.at(place.b, seq.q_begin + row0, place.h), q.seq_stride, 0, rows,
                        args.shape.head_dim, args.q_aligned});
    }
    ptx::commit_copies();  // its own group: a block without keys loads no stage, and waits for q
  }

  /// Starts loading keys [n0, n0 + kBlockN) and ends the group of copies, which may be empty.
  __device__ void load_stage(int stage, int n0) const {
    T* const k = k_smem(stage);
    if (n0 >= bounds.whole_begin && n0 + kBlockN <= bounds.whole_end) {
      load_whole<kD>(k, from(0) + n0 * args.k1.seq_stride, args.k1.seq_stride);
      load_whole<kD>(k + Config::kKElements, from(1) + n0 * args.k2.seq_stride, args.k2.seq_stride);
      load_whole<kDv>(v_smem(stage), from(2) + n0 * args.v.seq_stride, args.v.seq_stride);
    } else if (n0 < bounds.end) {
      load_part<kD>(k, args.k1, n0, args.shape.head_dim, args.k_aligned);
      load_part<kD>(k + Config::kKElements, args.k2, n0, args.shape.head_dim, args.k_aligned);
      load_part<kDv>(v_smem(stage), args.v, n0, args.shape.value_dim, args.v_aligned);
    }
    if (n0 < bounds.end) load_mask(stage, n0);
    ptx::commit_copies();
  }

  /// A thread keeps its chunk and goes down the rows in steps of a multiple of 8, which leave the
  /// swizzle alone.
  template <int kCols>
  __device__ void load_whole(T* tile, const T* from, int64_t stride) const {
    constexpr int kChunks = kCols / kChunk, kAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kAtOnce % 8 == 0 && kBlockN % kAtOnce == 0);
    const uint32_t to = ptx::smem_address(tile) +
                        TileLayout<kCols>::offset(threadIdx.x / kChunks, threadIdx.x % kChunks);
#pragma unroll
    for (int i = 0; i < kBlockN / kAtOnce; ++i) {
      ptx::copy_16_or_zero(to + i * kAtOnce * kCols * 2, from + i * kAtOnce * stride, true);
    }
  }

  template <int kCols>
  __device__ void load_part(T* tile, const Rows<const T>& rows, int n0, int cols,
                            bool aligned) const {
    load_tile_slowly<kBlockN, kCols, kThreads>(
        tile, TileSource<T>{rows.at(place.b, seq.k_begin + n0, args.shape.kv_head(place.h)),
                            rows.seq_stride, seq.first_key - n0, bounds.end - n0, cols, aligned});
  }

  __device__ bool has_words() const { return args.shape.mask.kind == MaskKind::kBoolean; }
  __device__ HeadMask mask() const { return {args.shape, seq, place.b, place.h}; }
  /// [kBlockM, kParts] under a boolean mask: who sees what of a stage.
  __device__ uint32_t* words_smem() const {
    return reinterpret_cast<uint32_t*>(smem + Config::kSmemBytes);
  }
  /// The bytes of the word that this thread makes for a stage.
  __device__ char* slot_smem(int stage, int word) const {
    return smem + Config::kSmemBytes + Config::kWordBytes + stage * Config::kSlotBytes / 2 +
           word * MaskBytes::kSlot;
  }
  __device__ void load_mask(int stage, int n0) const {
    if (args.shape.mask.kind == MaskKind::kNone) return;
    const HeadMask head = mask();
    if (!has_words()) {
      return touch_bias<kBlockM, kBlockN, kThreads>(bias_smem(kBlockM), head, row0, n0);
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
  /// Under a boolean mask: does any row of the warp see any key of a part?
  __device__ bool any_seen(int part) const {
    return __any_sync(0xffffffffu, words_smem()[(warp_row + lane) * kParts + part] != 0) != 0;
  }

  /// (2) of one part of a stage.
  __device__ void scores(Scores& s, int stage, int part) const {
    multiply_transposed<2, kPart, kD>(s, q_smem + map * Config::kQElements, warp_row,
                                      k_smem(stage) + map * Config::kKElements + part * kPart * kD);
  }

  /// (4) for 16 keys of a stage.
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

  /// (3) for 16 keys of a part, and sums of p.
  __device__ void exponentials(uint32_t (&p)[2][4], const Scores& s, int k, float (&sum)[2][2],
                               float scale) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float reference = State::finite_or_zero(state.m[i][r]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = ptx::exp2(s[i][2 * k + j][2 * r] * scale - reference);
          const float y = ptx::exp2(s[i][2 * k + j][2 * r + 1] * scale - reference);
          sum[i][r] += x;
          sum[i][r] += y;
          p[i][2 * j + r] = pack<T>(x, y);
        }
      }
    }
  }

  /// A stage with the m that there is; kPartly: some row does not see all of it.
  template <bool kPartly>
  __device__ void quick_stage(int stage, int n0) {
    float sum[2][2] = {};
#pragma unroll 1  // two parts at once have no registers
    for (int part = 0; part < kParts; ++part) {
      if (kPartly && has_words() && !any_seen(part)) continue;
      Scores s = {};
      scores(s, stage, part);
      if constexpr (kPartly) hide(s, n0, part);
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
        redo |= !(sum[i][r] < kHopeless);
      }
    }
    if (__any_sync(0xffffffffu, most > kLimit)) state.outgrow(sum);  // (5)
  }

  /// -inf where the row may not see, which replaces a NaN.
  __device__ void hide(Scores& s, int n0, int part) const {
    static_assert(kPart == 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + i * 16 + r * 8 + lane / 4;
        hide_unseen(s[i], r,
                    has_words() ? words_smem()[row * kParts + part]
                                : visible_word(seq, row0 + row, n0 + part * kPart));
      }
    }
  }

  /// m of rows that have none, from the first part of a stage that they all see.
  __device__ void find_reference(int stage) {
    Scores s = {};
    scores(s, stage, 0);
    state.raise(s, factor);
  }

  /// A stage with masks, or with scores that outgrow m. Columns that a row may not see are
  /// replaced, not added to; a stage of v with infinities or NaN is multiplied entry by entry.
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
        hide(s, n0, part);
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

  /// [kBlockM, kBiasPitch] under an additive mask: the biases of a part.
  __device__ float* bias_smem(int row) const {
    return reinterpret_cast<float*>(smem + Config::kSmemBytes) + row * kBiasPitch;
  }
  /// For both maps; every warp of the block comes here.
  __device__ void load_biases(int n0) const {
    const int row = ptx::reread_thread() / kWarpSize * 16;
    __syncthreads();  // nobody reads the last ones any more
    load_bias<16>(bias_smem(row), mask(), row0 + row, n0);
    __syncthreads();  // they are there
  }

  /// To base 2.
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
  BlockPlace place =
      grouped_place(static_cast<int>(blockIdx.x), args.shape.batch, args.shape.heads, tiles, group);
  place.tile = tiles - 1 - place.tile;  // causal: the rows that see most come first
  if (threadIdx.x == 0) bounds.set<Config>(args, place);
  __syncthreads();  // they are there
  PairForward<T, Config>{args, smem, place, bounds}.run();
}

}  // namespace diffattn::cuda::sm80
