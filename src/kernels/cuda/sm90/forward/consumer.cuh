// SPDX-License-Identifier: Apache-2.0
//
// ConsumerItem: a consumer warpgroup's view of its work item, and its side of the K/V pipeline.
// ForwardProducts: its wgmma products. kernel.cuh and recompute.cuh use both.
#pragma once

#include <type_traits>

#include "kernels/cuda/ptx/descriptor.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/bias_pieces.cuh"
#include "kernels/cuda/sm90/forward/schedule.cuh"
#include "kernels/cuda/sm90/forward/softmax.cuh"
#include "kernels/cuda/sm90/forward/store.cuh"

namespace diffattn::cuda::sm90 {

/// Words of a boolean mask: the bits of one tile for a thread's rows g and g + 8, where
/// g = lane / 4. A set bit marks a visible column.
struct TileWords {
  uint4 row[2];

  template <int kN>
  __device__ __forceinline__ void mask(float (&s)[kN]) const {
    static_assert(kN % 16 == 0 && kN <= 64);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t word[4] = {row[r].x, row[r].y, row[r].z, row[r].w};
#pragma unroll
      for (int k = 0; k < kN / 16; ++k) {
        const uint32_t seen = word[k] >> (2 * (threadIdx.x % 4));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& x = s[16 * k + i / 2 * 4 + 2 * r + i % 2];
          x = (seen & (1u << (i / 2 * 8 + i % 2))) != 0 ? x : -INFINITY;
        }
      }
    }
  }
};

/// A thread's biases of one tile, for an additive mask: -inf for columns that a row does not see.
template <class B, int kKeys>
struct TileBiases {
  static constexpr bool kBase2 = sizeof(B) == 4;  // float biases include the factor log2(e)
  static constexpr int kPieces = kKeys / 2 / BiasPiece<B>::kNumbers;
  BiasPiece<B> pieces[kPieces];

  __device__ __forceinline__ void load(const uint4* from) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i].load(from, i);
  }

  /// Computes s = s scale + bias.
  __device__ __forceinline__ void add_to(float (&s)[kKeys / 2], float scale) {
    constexpr int kNumbers = BiasPiece<B>::kNumbers;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      pieces[i].keep_packed();
#pragma unroll
      for (int k = 0; k < kNumbers / 2; ++k) {
        const float2 bias = pieces[i].pair(k);
        float* const x = s + kNumbers * i + 2 * k;
        x[0] = fmaf(x[0], scale, bias.x);
        x[1] = fmaf(x[1], scale, bias.y);
      }
    }
  }
};

/// No mask tensor.
struct NoMaskTile {
  static constexpr bool kBase2 = false;
};

/// A consumer's work item. kLower: columns at the start may be hidden from some rows (window or
/// key_starts). MaskTile: TileWords for a boolean mask, TileBiases for an additive one, NoMaskTile
/// without a mask tensor. Words and biases include the causal bounds.
template <class T, class Config, bool kLower, class MaskTile = NoMaskTile>
struct ConsumerItem {
  static constexpr int kN = Config::kBlockN;
  static constexpr bool kWords = std::is_same_v<MaskTile, TileWords>;
  static constexpr bool kBiases = !kWords && !std::is_same_v<MaskTile, NoMaskTile>;
  static constexpr bool kBase2 = std::conditional_t<kBiases, MaskTile, NoMaskTile>::kBase2;
  static constexpr int kStages = Config::kStages, kQBuffers = Config::kQBuffers;

  const ForwardArguments<T>& args;
  const uint32_t smem;
  const int consumer;
  const int lane = threadIdx.x % 32;

  KeyRange range{};     // tiles that this consumer sees; all fields but begin count from begin
  int count = 0;        // number of the item, from 0
  int pipe = 0;         // tile j of `range` has pipeline number pipe + j
  uint32_t q_smem = 0;  // this item's q, [map][64, D]
  std::conditional_t<kBiases, MaskTile, NoMaskTile> biases;  // of the current tile, for both maps
  const uint4* next_biases = nullptr;  // biases of the next tile, in global memory

  /// Waits for item `count` and enters it. Returns false if there are no more items.
  __device__ __forceinline__ bool open() {
    KeyRange found;
    if (!find(count, found)) return false;
    enter(found);
    return true;
  }
  /// Waits for q of item `number` and computes which tiles this consumer's rows see. Returns false
  /// if there are no more items.
  __device__ __forceinline__ bool find(int number, KeyRange& found) const {
    ptx::barrier_wait(smem + Config::kQFull + 8 * slot(number), number / kQBuffers & 1);
    if (uniform(ptx::load_smem_int(item(number))) < 0) return false;
    const KeyRange all = KeyRange::of<kN>(sequence(number), first_row(number), origin(number));
    found = {kLower ? uniform(all.begin) : 0, uniform(all.full_begin - all.begin),
             kWords || kBiases ? 0 : uniform(all.full_end - all.begin),
             uniform(all.end - all.begin), uniform(all.last_columns)};
    return true;
  }
  /// Begins item `count`, whose rows see the tiles `found`.
  __device__ __forceinline__ void enter(const KeyRange& found) {
    pipe = uniform(pipe);
    q_smem = uniform(smem + Config::kQ + slot(count) * Config::kQBytes);
    if constexpr (kLower) skip(found.begin);
    range = found;
  }

  /// Ends the item's use of q and k after the scores of its last tile j: releases q and advances
  /// `pipe` to the next item's tiles. Returns the pipeline number of tile j.
  __device__ __forceinline__ int close(int j) {
    if (ptx::elect_lane()) ptx::barrier_arrive(smem + Config::kQEmpty + 8 * slot(count));
    const int last = pipe + j;
    pipe = last + 1;
    skip(uniform(tiles() - (kLower ? range.begin : 0) - range.end));
    return last;
  }

  /// Skips the next `tiles` tiles of the pipeline, which only the other consumer reads: waits for
  /// each and releases it.
  __device__ __forceinline__ void skip(int tiles) {
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      wait_k(j);
      release(Config::kKEmpty, j);
      wait_v(j);
      release(Config::kVEmpty, j);
    }
    pipe += max(0, tiles);
  }

  /// Start to load the biases of the item's first tile, or of the next tile.
  __device__ __forceinline__ void load_first_biases() {
    if constexpr (kBiases) {
      const int4 coordinates = ptx::load_smem_int4(item(count));
      if (coordinates.x < 0) return;  // no item
      const MaskBiases& all = args.biases;
      next_biases = all.data + coordinates.z * all.batch_stride + coordinates.y * all.head_stride +
                    (coordinates.x / MaskBiases::kRows + row_block(count)) * all.row_stride + lane;
      load_next_biases();
    }
  }
  __device__ __forceinline__ void load_next_biases() {
    if constexpr (kBiases) {
      biases.load(next_biases);
      next_biases += args.biases.column_stride;
    }
  }

  /// Input of `mask` for a tile: the words of a boolean mask, or the column limits of the rows.
  using Limits =
      std::conditional_t<kWords || kBiases, std::conditional_t<kWords, MaskTile, NoMaskTile>,
                         RowLimits<kLower>>;
  __device__ __forceinline__ Limits limits(int j) const {
    if constexpr (kWords) {
      const int4 coordinates = ptx::load_smem_int4(item(count));
      if (coordinates.x < 0) return {};  // no item
      const uint4* const first = args.words.data + coordinates.z * args.words.batch_stride +
                                 coordinates.y * args.words.head_stride +
                                 static_cast<int64_t>(j) * args.words.rows + row(0);
      return {__ldg(first), __ldg(first + 8)};
    } else if constexpr (kBiases) {
      return {};
    } else {
      const int column = origin(count) + (kLower ? range.begin + j : j) * kN + 2 * (lane % 4);
      return RowLimits<kLower>::of(sequence(count), row(0), column);
    }
  }

  /// Masks the scores of tile j: adds biases, or writes -inf to columns that a row does not see.
  template <int kMap>
  __device__ __forceinline__ void mask(float (&s)[kN / 2], int j, const Limits& limits) {
    if constexpr (kBiases) {
      biases.add_to(s, kMap == 0 ? args.scale : args.scale2);
    } else if constexpr (kWords) {
      limits.mask(s);
    } else {
      if (j >= range.full_end) limits.mask_end(s);
      if (kLower && j < range.full_begin - 1) limits.mask_begin(s);
    }
  }

  /// Returns the q buffer of item `number`.
  __device__ __forceinline__ int slot(int number) const {
    return 2 * (number % kQBuffers) + consumer;
  }
  __device__ __forceinline__ uint32_t item(int number) const {
    return smem + Config::kItems + number % Config::kItemSlots * kItemBytes;
  }

  // These functions read the item from shared memory at each use, which saves registers.
  __device__ __forceinline__ Sequence sequence(int number) const {
    const uint32_t at = item(number);
    return sequence_of(args, ptx::load_smem_int4(at), ptx::load_smem_int4(at + 32));
  }
  /// Returns the first column of the item's first tile.
  __device__ __forceinline__ int origin(int number) const {
    return kLower ? ptx::load_smem_int(item(number) + 24) : 0;
  }
  __device__ __forceinline__ int tiles() const { return ptx::load_smem_int(item(count) + 28); }
  __device__ __forceinline__ int first_row(int number) const {
    return ptx::load_smem_int(item(number)) + consumer_half(consumer, number) * kConsumerRows;
  }
  __device__ __forceinline__ int row(int r) const {
    return ptx::load_smem_int(item(count)) + 16 * row_block(count) + lane / 4 + 8 * r;
  }
  __device__ __forceinline__ int warp() const { return 4 * consumer + threadIdx.x / 32 % 4; }
  /// Returns the index of this warp's block of 16 rows in item `number`, from 0 to 7.
  __device__ __forceinline__ int row_block(int number) const {
    return 4 * consumer_half(consumer, number) + threadIdx.x / 32 % 4;
  }
  /// Returns this warp's rows of item `number`.
  __device__ __forceinline__ WarpRows rows(int number) const {
    const int4 coordinates = ptx::load_smem_int4(item(number));
    return {coordinates.x + 16 * row_block(number), coordinates.w,
            ptx::load_smem_int(item(number) + 16), coordinates.z, coordinates.y};
  }
  /// Returns this warp's output buffers, from which TMA stores.
  __device__ __forceinline__ char* stages() const {
    return memory() + Config::kOut + warp() * Config::kOutStages * Config::kStageWarp;
  }
  __device__ __forceinline__ const float* gains() const {
    return reinterpret_cast<const float*>(memory() + Config::kGains);
  }
  /// Returns shared memory as a pointer. It is a constant, whereas a member would take two
  /// registers.
  __device__ static __forceinline__ char* memory() {
    extern __shared__ __align__(1024) char memory[];
    return memory;
  }

  __device__ __forceinline__ unsigned stage(int j) const {
    return static_cast<unsigned>(pipe + j) % kStages;
  }
  __device__ __forceinline__ unsigned parity(int j) const {
    return static_cast<unsigned>(pipe + j) / kStages & 1;
  }
  __device__ __forceinline__ void wait_k(int j) const { wait(Config::kKFull, j); }
  __device__ __forceinline__ void wait_v(int j) const { wait(Config::kVFull, j); }
  __device__ __forceinline__ void wait(int barriers, int j) const {
    ptx::barrier_wait(smem + barriers + 8 * stage(j), parity(j));
  }
  __device__ __forceinline__ bool is_loaded(int barriers, int j) const {
    return ptx::barrier_completed(smem + barriers + 8 * stage(j), parity(j));
  }
  __device__ __forceinline__ void release(int barriers, int j) const {
    if (ptx::elect_lane()) ptx::barrier_arrive(smem + barriers + 8 * stage(j));
  }
  __device__ __forceinline__ void release_item(int number) const {
    const uint32_t empty = smem + Config::kItemEmpty + 8 * (number % Config::kItemSlots);
    if (ptx::elect_lane()) ptx::barrier_arrive(empty);
    __syncwarp();
  }
};

/// The wgmma products of a consumer: s [64, kN] = q k^T and o [64, kDv] += p v. Each is one commit
/// group.
template <class T, class Config>
struct ForwardProducts {
  static constexpr int kD = Config::kHeadDim, kDv = Config::kValueDim, kN = Config::kBlockN;

  template <int kMap>
  __device__ static __forceinline__ void issue_scores(float (&s)[kN / 2], uint32_t smem,
                                                      uint32_t q_smem, bool shared_k,
                                                      unsigned stage) {
    // All addresses below are in units of 16 bytes.
    const uint32_t zero = ptx::opaque_zero();
    const uint32_t k_map = kMap == 0 || shared_k ? 0 : Config::kKMap / 16;
    const uint64_t q = ptx::swizzled_descriptor(q_smem / 16 + zero + kMap * Config::kQMap / 16);
    const uint64_t k = ptx::swizzled_descriptor(smem / 16 + zero + Config::kK / 16 + k_map +
                                                stage * (2 * Config::kKMap / 16));
    using ptx::Major;
    ptx::pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
      const uint64_t q_i = q + 2 * (i % 4) + i / 4 * (kConsumerRows * kSwizzledRow / 16);
      const uint64_t k_i = k + 2 * (i % 4) + i / 4 * (kN * kSwizzledRow / 16);
      if (i == 0) {
        ptx::Wgmma<T, kN>::template ss<false, Major::kK, Major::kK>(s, q_i, k_i);
      } else {
        ptx::Wgmma<T, kN>::template ss<true, Major::kK, Major::kK>(s, q_i, k_i);
      }
    }
    ptx::wgmma_commit();
  }

  /// Adds p v over the first 16 kSteps keys of the tile. p is 0 for the other keys.
  template <int kSteps = kN / 16>
  __device__ static __forceinline__ void issue_output(float (&o)[kDv / 2],
                                                      const uint32_t (&p)[kN / 4], uint32_t smem,
                                                      unsigned stage) {
    const uint64_t v = ptx::swizzled_descriptor(
        smem / 16 + ptx::opaque_zero() + Config::kV / 16 + stage * (Config::kVBytes / 16),
        kN * kSwizzledRow);
    ptx::pin(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      ptx::Wgmma<T, kDv>::template rs<true, ptx::Major::kMn>(o, p + 4 * i, v + 128 * i);
    }
    ptx::wgmma_commit();
  }
};

}  // namespace diffattn::cuda::sm90
