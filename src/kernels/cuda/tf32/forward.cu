// SPDX-License-Identifier: Apache-2.0
//
// tf32 forward (float32). A block of 8 warps computes 128 rows of one (batch entry, head); each
// warp computes 16 of them for both maps:
//
//   for each tile of 32 keys that any row may see:
//     (1) s1 = q1 k1^T, s2 = q2 k2^T                                    [16, 32] per warp
//     (2) rescale m, l, o1, o2;  p = exp2(scale log2(e) s + mask - m)   online softmax, base 2
//     (3) o1 += p1 v, o2 += p2 v                                        [16, kDv] per warp
//   (4) lse = m ln 2 + log l;  O = o1 / l1 - lambda o2 / l2;  out = epilogue(O)
//
// If Dv > 128, the block repeats all of this for each 128 columns of v and applies the epilogue at
// the end. If a result is not finite, the block runs again with kCareful (see tile.cuh).

#include "kernels/cuda/check.h"
#include "kernels/cuda/quad_reduce.cuh"
#include "kernels/cuda/simt/forward.cuh"
#include "kernels/cuda/tf32/launch.h"
#include "kernels/cuda/tf32/tile.cuh"

namespace diffattn::cuda::tf32 {
namespace {

using simt::ForwardArguments;

/// True for each group of tensors whose rows all start at multiples of 16 bytes.
struct Aligned {
  bool q, k, v;  // q1, q2; k1, k2; v
};

/// Shared memory of a block, with kDv columns of v at a time. k1 and k2 have two stages. v has two
/// if both fit, else one (kOneV).
template <int kD, int kDv>
struct alignas(16) ForwardSmem {
  static constexpr bool kOneV = kD > 64;
  struct Keys {
    float k1[kColumns * kPitch<kD>], k2[kColumns * kPitch<kD>];
  };
  float q1[kBlockRows * kPitch<kD>], q2[kBlockRows * kPitch<kD>];
  Keys keys[2];
  float v[kOneV ? 1 : 2][kColumns * kPitch<kDv>];
};

template <int kD, int kDv, bool kCareful>
struct Forward {
  using Smem = ForwardSmem<kD, kDv>;
  using Tile = float[kColumns8][4];  // rows g + 8 (e / 2), keys 8 j + 2 t + e % 2

  const ForwardArguments<float>& args;
  const Aligned& aligned;
  Smem& smem;
  WorkItem& block;
  const Sequence& seq = block.seq;
  const int lane = threadIdx.x % 32;
  const int warp_row = block.row + threadIdx.x / 32 * kOwnRows;

  float o[2][kDv / 8][4], m[2][2];
  float l[2][2];  // row sums over this lane's columns

  __device__ void run() {
    if (block.row >= seq.seq_q) return;
#pragma unroll 1
    for (int column0 = 0; column0 < args.shape.value_dim; column0 += kDv) {
      clear();
      run_keys(column0);
      finish(column0);
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int map = 0; map < 2; ++map) {
      m[map][0] = m[map][1] = -INFINITY;
      l[map][0] = l[map][1] = 0.0f;
#pragma unroll
      for (int c = 0; c < kDv / 8; ++c) {
        o[map][c][0] = o[map][c][1] = o[map][c][2] = o[map][c][3] = 0.0f;
      }
    }
  }

  /// Computes (1) to (3) over all key tiles. The next tile of k1, k2 and v loads while this one is
  /// in use. If kOneV, v of a tile loads during (1) and (2) of the same tile instead.
  __device__ void run_keys(int column0) {
    constexpr bool kOneV = Smem::kOneV;
    const int begin = max(0, seq.first_visible(block.row)) / kColumns * kColumns;
    const int end = seq.end_visible(min(block.row + kBlockRows, seq.seq_q) - 1);
    const int columns = args.shape.value_dim - column0;
    __syncthreads();  // all warps have stored the previous columns of O, which overlay q
    load_queries(smem.q1, args.q1);
    load_queries(smem.q2, args.q2);
    if (begin < end) load_keys(smem.keys[0], begin);
    if (begin < end && !kOneV) load_values(smem.v[0], begin, column0);
    ptx::commit_copies();
    for (int n0 = begin, stage = 0; n0 < end; n0 += kColumns, stage ^= 1) {
      float* const v = smem.v[kOneV ? 0 : stage];
      const int next = n0 + kColumns;
      ptx::wait_copies<0>();
      // All threads' copies of these keys have arrived, and no warp reads the buffers loaded next.
      __syncthreads();
      if (kOneV) load_values(v, n0, column0);
      ptx::commit_copies();
      if (next < end) load_keys(smem.keys[stage ^ 1], next);
      if (next < end && !kOneV) load_values(smem.v[stage ^ 1], next, column0);
      ptx::commit_copies();
      Tile p[2] = {};  // zeroed only because that saves registers
      const bool seen = is_seen(n0);
      if (seen) weigh(smem.keys[stage], n0, p);
      if (kOneV) {
        ptx::wait_copies<1>();
        __syncthreads();  // all threads' copies of v have arrived
      }
      if (kCareful) {
        if (seen) add_unsplit<2, kDv>(o, p, v, columns);
        __syncthreads();  // all warps have added the values that cannot be split
        clear_unsplit<kColumns, kDv>(v);
        __syncthreads();  // all threads have cleared them
      }
      if (seen) add_weighted<2, kDv>(o, p, v, columns);  // (3)
    }
  }

  __device__ void load_queries(float* tile, const Rows<const float>& rows) {
    load_tile<kBlockRows, kD>(
        tile, {rows.at(block.b, seq.q_begin + block.row, block.h), rows.seq_stride, 0,
               seq.seq_q - block.row, args.shape.head_dim, aligned.q});
  }

  __device__ TileSource key_source(const Rows<const float>& rows, int n0, int column, int width,
                                   bool is_aligned) const {
    const float* const row0 = rows.at(block.b, seq.k_begin + n0, block.kv_h) + column;
    return {row0, rows.seq_stride, seq.first_key - n0, seq.end_key - n0, width, is_aligned};
  }
  __device__ void load_keys(typename Smem::Keys& keys, int n0) {
    const int d = args.shape.head_dim;
    load_tile<kColumns, kD>(keys.k1, key_source(args.k1, n0, 0, d, aligned.k));
    load_tile<kColumns, kD>(keys.k2, key_source(args.k2, n0, 0, d, aligned.k));
  }
  __device__ void load_values(float* v, int n0, int column0) {
    load_tile<kColumns, kDv>(
        v, key_source(args.v, n0, column0, args.shape.value_dim - column0, aligned.v));
  }

  /// True if any row of this warp may see any key of the tile, ignoring the mask tensor.
  __device__ bool is_seen(int n0) const {
    const int last_row = min(warp_row + kOwnRows, seq.seq_q) - 1;
    return last_row >= warp_row && n0 < seq.end_visible(last_row) &&
           n0 + kColumns > seq.first_visible(warp_row);
  }

  /// Computes (1) and (2). s receives p.
  __device__ void weigh(const typename Smem::Keys& keys, int n0, Tile (&s)[2]) {
    dot(s[0], smem.q1, keys.k1);
    dot(s[1], smem.q2, keys.k2);
    const HeadMask mask{args.shape, seq, block.b, block.h};
    if (mask.all_visible(warp_row, warp_row + kOwnRows, n0, n0 + kColumns)) {
      update(0, s[0], args.scale_log2);
      update(1, s[1], args.scale2_log2);
    } else {
      update_masked(mask, s, n0);
    }
  }

  __device__ void dot(Tile& s, const float* q, const float* k) {
    const float* const rows = q + threadIdx.x / 32 * kOwnRows * kPitch<kD>;
    dot_rows<kD>(s, row_address<kD>(rows), column_address<kD>(k), args.shape.head_dim);
    if (kCareful) recompute_nan_dots<kD>(s, rows, k, args.shape.head_dim);
  }

  /// Raises m of rows g and g + 8 to the quad's `tile_max`, and rescales l and o. `m_finite`
  /// receives the new m, or 0 for a row that has seen no column.
  __device__ void rescale(int map, const float (&tile_max)[2], float (&m_finite)[2]) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float m_new = fmaxf(m[map][i], quad_max(tile_max[i]));
      // A row that has seen no column has m = -inf, and -inf - (-inf) is NaN.
      m_finite[i] = m_new == -INFINITY ? 0.0f : m_new;
      factor[i] = ptx::exp2(m[map][i] - m_finite[i]);
      m[map][i] = m_new;
      // The compiler never contracts __fmul_rn to an FMA, so both values of kCareful give the same
      // bits.
      l[map][i] = __fmul_rn(l[map][i], factor[i]);
    }
    if (!__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int c = 0; c < kDv / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[map][c][e] *= factor[e / 2];
    }
  }

  /// Computes (2) for a fully visible tile: s becomes p. One FMA scales s and subtracts the row
  /// maximum. Rounding the product first would change a score of 16 by up to 1e-6, and its
  /// probability by the same relative amount.
  __device__ void update(int map, Tile& s, float scale) {
    float tile_max[2] = {-INFINITY, -INFINITY}, m_finite[2];
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) tile_max[e / 2] = fmaxf(tile_max[e / 2], s[j][e] * scale);
    }
    rescale(map, tile_max, m_finite);
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = ptx::exp2(fmaf(s[j][e], scale, -m_finite[e / 2]));
        l[map][e / 2] += s[j][e];
      }
    }
  }

  /// Computes (2) for both maps of a masked tile. Corrects the rounding of scores, as
  /// simt::Forward::scores does.
  __device__ void update_masked(const HeadMask& mask, Tile (&s)[2], int n0) {
    Tile bias;
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        bias[j][e] = mask.bias(warp_row + lane / 4 + e / 2 * 8, n0 + 8 * j + lane % 4 * 2 + e % 2);
      }
    }
#pragma unroll
    for (int map = 0; map < 2; ++map) {
      const float scale = map == 0 ? args.scale_log2 : args.scale2_log2;
      float tile_max[2] = {-INFINITY, -INFINITY}, m_finite[2];
#pragma unroll
      for (int j = 0; j < kColumns8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (bias[j][e] == -INFINITY) continue;
          tile_max[e / 2] = fmaxf(tile_max[e / 2], s[map][j][e] * scale + bias[j][e]);
        }
      }
      rescale(map, tile_max, m_finite);
#pragma unroll
      for (int j = 0; j < kColumns8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[map][j][e] = weight(s[map][j][e], scale, bias[j][e], m_finite[e / 2]);
          l[map][e / 2] += s[map][j][e];
        }
      }
    }
  }

  /// Returns exp2(scale s + bias - m_finite), with the rounding error of the score added back.
  __device__ static float weight(float s, float scale, float bias, float m_finite) {
    if (bias == -INFINITY) return 0.0f;  // even if s is NaN
    const float product = __fmul_rn(s, scale), score = __fadd_rn(product, bias);
    const float lost = fmaf(s, scale, -product) + (bias - (score - product));
    const float rest = fabsf(score) < simt::kLargeScore ? lost : 0.0f;
    return ptx::exp2(score - m_finite + rest);
  }

  /// Computes (4): writes O and o2 to shared memory, from which each warp finishes its rows one by
  /// one.
  __device__ void finish(int column0) {
    constexpr int kOPitch = kPitch<kDv>;
    float* const o_smem = smem.q1;  // [128, kOPitch]
    float* const o2_smem = o_smem + kBlockRows * kOPitch;
    ptx::wait_copies<0>();
    __syncthreads();  // all warps have finished with q, k and v, which O overwrites
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row + lane / 4 + 8 * i;
      const float l1 = quad_sum(l[0][i]), l2 = quad_sum(l[1][i]);
      const bool exists = row < seq.seq_q, dead = l1 == 0.0f;
      const int64_t at = seq.q_begin + row;
      const float inverse1 = dead ? 0.0f : 1.0f / l1, inverse2 = dead ? 0.0f : 1.0f / l2;
      const float lambda = exists && !dead ? *args.lambda.at(block.b, at, block.h) : 0.0f;
      float* const to = o_smem + (row - block.row) * kOPitch + lane % 4 * 4;
#pragma unroll
      for (int c = 0; c < kDv / 16; ++c) {
        float o_reg[4], o2_reg[4];  // columns 16 c + 4 t + x
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          o2_reg[x] = o[1][2 * c + x % 2][2 * i + x / 2] * inverse2;
          const float o1 = __fmul_rn(o[0][2 * c + x % 2][2 * i + x / 2], inverse1);
          o_reg[x] = fmaf(-lambda, o2_reg[x], o1);
          finite = finite && fabsf(o_reg[x]) < INFINITY && fabsf(o2_reg[x]) < INFINITY;
        }
        *reinterpret_cast<float4*>(to + 16 * c) = {o_reg[0], o_reg[1], o_reg[2], o_reg[3]};
        *reinterpret_cast<float4*>(to + kBlockRows * kOPitch + 16 * c) = {o2_reg[0], o2_reg[1],
                                                                          o2_reg[2], o2_reg[3]};
      }
      if (exists && lane % 4 == 0) {
        l_smem(row) = l1;
        if (args.lse1.data != nullptr) {
          *args.lse1.at(block.b, at, block.h) = m[0][i] * kLn2 + logf(l1);
          *args.lse2.at(block.b, at, block.h) = m[1][i] * kLn2 + logf(l2);
        }
      }
    }
    if (!finite) block.non_finite = 1;
    __syncwarp();
    for (int row = warp_row; row < min(warp_row + kOwnRows, seq.seq_q); ++row) {
      store_row(row, column0, o_smem + (row - block.row) * kOPitch,
                o2_smem + (row - block.row) * kOPitch);
    }
  }

  /// Returns l1 of a row, which is stored in the padding of its row of O.
  __device__ float& l_smem(int row) { return smem.q1[(row - block.row) * kPitch<kDv> + kDv]; }

  __device__ void store_row(int row, int column0, const float* o_row, const float* o2_row) {
    const int64_t at = seq.q_begin + row;
    const int width = args.shape.value_dim, columns = min(kDv, width - column0);
    const auto saved = [&](const Rows<float>& rounded, const Rows<float>& exact) {
      const auto from = [&](const Rows<float>& rows) {
        return rows.data == nullptr ? nullptr : rows.at(block.b, at, block.h) + column0;
      };
      return SavedRow<float>{from(rounded), nullptr, from(exact)};
    };
    float* const out = args.out.at(block.b, at, block.h);
    const SavedRow<float> o_saved = saved(args.o, args.o_exact);
    const SavedRow<float> o2_saved = saved(args.o2, args.o2_exact);
    for (int c = lane; c < columns; c += 32) o2_saved.store(c, o2_row[c]);
    const bool dead = l_smem(row) == 0.0f;
    if (width <= kDv) return finish_row(args.epilogue, o_row, width, dead, out, o_saved);
    for (int c = lane; c < columns; c += 32) {
      o_saved.store(c, o_row[c]);
      out[column0 + c] = o_row[c];
    }
    if (column0 + kDv < width) return;
    finish_row(args.epilogue, out, width, dead, out, {});  // each lane reads only what it wrote
  }
};

/// Runs the block again with kCareful. Inlining it would cost the kernel registers.
template <int kD, int kDv>
__device__ __noinline__ void run_careful(const ForwardArguments<float>& args,
                                         const Aligned& aligned, ForwardSmem<kD, kDv>& smem,
                                         WorkItem& block) {
  Forward<kD, kDv, true>{args, aligned, smem, block}.run();
}

template <int kD, int kDv>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardArguments<float> args,
                   const __grid_constant__ Aligned aligned, int tiles) {
  extern __shared__ __align__(16) float tf32_smem[];
  __shared__ WorkItem block;
  block.set(args.shape,
            work_tile_of(blockIdx.x, args.shape.batch, args.shape.heads, tiles, /*from_last=*/true),
            kBlockRows);
  auto& smem = *reinterpret_cast<ForwardSmem<kD, kDv>*>(tf32_smem);
  Forward<kD, kDv, false>{args, aligned, smem, block}.run();
  __syncthreads();  // all warps have finished with shared memory and have set block.non_finite
  if (block.non_finite != 0) run_careful<kD, kDv>(args, aligned, smem, block);
}

template <int kD, int kDv>
void launch(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  const Aligned aligned{.q = has_rows_of_4(params.q1) && has_rows_of_4(params.q2),
                        .k = has_rows_of_4(params.k1) && has_rows_of_4(params.k2),
                        .v = has_rows_of_4(params.v)};
  constexpr int kBytes = sizeof(ForwardSmem<kD, kDv>);
  static_assert(kBytes >= 2 * kBlockRows * kPitch<kDv> * 4, "O and o2 go there");
  const auto kernel = forward_kernel<kD, kDv>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "tf32 forward: shared memory", params);
  const int64_t tiles = (params.seq_q + kBlockRows - 1) / kBlockRows;
  const auto blocks = static_cast<unsigned>(params.batch * params.heads * tiles);
  kernel<<<blocks, kThreads, kBytes, stream>>>(simt::forward_arguments<float>(params, exact),
                                               aligned, static_cast<int>(tiles));
  check_launch("tf32 forward", params);
}

}  // namespace

bool takes_forward(const ForwardParams& params) {
  constexpr size_t kNarrow = sizeof(ForwardSmem<64, 128>), kWide = sizeof(ForwardSmem<128, 128>);
  return params.head_dim <= 128 && takes(params, params.head_dim <= 64 ? kNarrow : kWide);
}

void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  if (params.head_dim <= 64) return launch<64, 128>(params, exact, stream);
  launch<128, 128>(params, exact, stream);
}

}  // namespace diffattn::cuda::tf32
