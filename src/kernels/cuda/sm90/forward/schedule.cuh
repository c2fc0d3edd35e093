// SPDX-License-Identifier: Apache-2.0
//
// Which (batch entry, head, 128 query rows) a block computes next: it takes the number of an item
// from a counter in global memory, and one warp writes what the others need to know of it into
// shared memory, one item ahead.
//
// Items are ordered by groups of heads, within these by query block, last first where rows see keys
// up to a diagonal (the longest), then by head.
#pragma once

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/forward/arguments.cuh"
#include "kernels/cuda/sm90/forward/config.h"
#include "kernels/cuda/sm90/hide_columns.cuh"

namespace diffattn::cuda::sm90 {

/// How many of an item's key tiles are still to be loaded when the next item is taken.
inline constexpr int kTakeTiles = 3;

/// As it lies in shared memory; row < 0 ends the kernel.
struct alignas(16) Item {
  int row, head, batch, seq_q;  // first row, within its sequence
  int q_begin, k_begin;         // the sequence's rows and columns in the tensors
  int first_column, tiles;      // where key tiles begin; those that any row may see, at least one
  int first_key, end_key;       // columns that are not padding
  int diagonal, kv_head;
};
static_assert(sizeof(Item) == kItemBytes);

/// Which half of item `number`'s rows a consumer has. They change places from item to item: the
/// second half may see a tile more.
__device__ inline int consumer_half(int consumer, int number) { return consumer ^ (number & 1); }

template <int kBlockN>
__device__ inline int tiles_down(int columns) {
  return static_cast<int>(static_cast<unsigned>(max(0, columns)) / kBlockN);
}
template <int kBlockN>
__device__ inline int tiles_up(int columns) {
  return tiles_down<kBlockN>(max(0, columns) + kBlockN - 1);
}

/// Key tiles [begin, end), counted from column `origin` on, that rows [row, row + kConsumerRows)
/// may see, at least one. In [clear_begin, clear_end) every row sees every column, and has seen one
/// before. Tiles begin at the first column that an item's first row sees: with a window that is a
/// tile less to compute than if they began at multiples of their width.
struct KeyRange {
  int begin, clear_begin, clear_end, end;
  int last_columns;  // of tile end - 1 that a row sees

  template <int kBlockN>
  __device__ static KeyRange of(const Sequence& seq, int row, int origin) {
    const int first = min(row, seq.seq_q - 1), last = min(row + kConsumerRows, seq.seq_q) - 1;
    KeyRange range;
    range.begin = tiles_down<kBlockN>(seq.first_visible(first) - origin);
    range.end = max(range.begin + 1, tiles_up<kBlockN>(seq.end_visible(max(first, last)) - origin));
    // Where all see all, plus the tile in which the last of them began to.
    range.clear_begin = tiles_up<kBlockN>(seq.first_visible(max(first, last)) - origin) + 1;
    range.clear_end = min(range.end, tiles_down<kBlockN>(seq.end_visible(first) - origin));
    range.last_columns = seq.end_visible(max(first, last)) - origin - (range.end - 1) * kBlockN;
    return range;
  }
};

/// From where to where rows g and g + 8 of a thread see, relative to its first column of a tile.
/// What this takes is in shared memory, where reading waits behind the operands of the products: to
/// be asked for before the tile's scores are waited for. `kLower`: as in ConsumerItem.
template <bool kLower>
struct RowLimits {
  int begin[2], end[2];

  __device__ static __forceinline__ RowLimits of(const Sequence& seq, int row, int column) {
    RowLimits limits{};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      limits.end[r] = seq.end_visible(row + 8 * r) - column;
      if constexpr (kLower) limits.begin[r] = seq.first_visible(row + 8 * r) - column;
    }
    return limits;
  }

  template <int kN>
  __device__ __forceinline__ void hide_end(float (&s)[kN]) const {
    hide_columns<false>(s, end[0], end[1]);
  }
  template <int kN>
  __device__ __forceinline__ void hide_begin(float (&s)[kN]) const {
    if constexpr (kLower) hide_columns<true>(s, begin[0], begin[1]);
  }
};

/// x, which is the same in all lanes, so that the compiler knows it: addresses, descriptors and
/// loop bounds then live in uniform registers. Otherwise each product costs five more instructions,
/// and the kernel a sixth of its speed.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

template <class T>
__device__ inline Sequence sequence_of(const ForwardArguments<T>& args, int4 place, int4 keys) {
  Sequence seq{};
  seq.seq_q = place.w;
  seq.first_key = keys.x;
  seq.end_key = keys.y;
  seq.diagonal = keys.z;
  seq.window = args.shape.window;
  seq.bounded = args.shape.bounded;
  return seq;
}

/// Runs in one thread; of a cluster, in its first block, which sends what it finds to the second.
template <class T, class Config>
struct Scheduler {
  const ForwardArguments<T>& args;
  Item* const items;  // [kItemSlots]
  const uint32_t smem;

  __device__ __forceinline__ void run() {
    int index = static_cast<int>(blockIdx.x) / Config::kCluster;
    for (int count = 0;; ++count) {
      constexpr int kSlots = Config::kItemSlots;
      const int slot = count % kSlots;
      ptx::barrier_wait_idle(smem + Config::kItemEmpty + 8 * slot, (count / kSlots & 1) ^ 1);
      // Not sooner: what a block takes early others cannot take when it turns out long.
      if (count > 0) {
        ptx::barrier_wait_idle(smem + Config::kTake, (count - 1) & 1);
        index = take();
      }
      Item& item = items[slot];  // filled in place: this thread has few registers
      while (!find(index, item)) index = take();
      if constexpr (Config::kCluster == 2) send(slot);
      ptx::barrier_arrive(smem + Config::kItemFull + 8 * slot);
      if (index >= args.blocks * args.heads) return;
    }
  }

  __device__ __forceinline__ void send(int slot) const {
    const uint32_t item = smem + Config::kItems + slot * kItemBytes;
    const uint32_t full = ptx::remote_address(smem + Config::kItemFull + 8 * slot, 1);
#pragma unroll 1
    for (int at = 0; at < kItemBytes; at += 16) {
      ptx::store_remote(ptx::remote_address(item + at, 1), full, ptx::load_smem_float4(item + at));
    }
  }

  __device__ __forceinline__ int take() const {
    ptx::wait_for_previous_kernel();  // the counter is 0
    return static_cast<int>(gridDim.x) / Config::kCluster + atomicAdd(args.state.next_item, 1);
  }

  /// False where there is nothing at this place.
  __device__ __forceinline__ bool find(int index, Item& item) const {
    if (index >= args.blocks * args.heads) {
      item.row = -1;
      return true;
    }
    const int per_group = args.heads_at_a_time * args.blocks;
    const int first_head = index / per_group * args.heads_at_a_time;
    const int in_group = index % per_group;
    const int heads = min(args.heads_at_a_time, args.heads - first_head);
    const int head = first_head + in_group % heads;
    int block = in_group / heads;
    if (args.shape.bounded) block = args.blocks - 1 - block;
    int batch = head / args.shape.heads, h = head % args.shape.heads;
    if (args.packed) {
      batch = sequence_at<kItemRows>(args.shape.cu_seqlens_q, args.shape.batch, block);
      h = head;
      block -= first_place<kItemRows>(args.shape.cu_seqlens_q, batch);
    }
    item.batch = batch;
    item.head = h;
    item.kv_head = args.shape.heads == args.shape.kv_heads ? h : args.shape.kv_head(h);
    const Sequence seq = args.shape.sequence(batch);
    const int row = block * kItemRows;
    if (row >= seq.seq_q) return false;
    item.row = row;
    item.seq_q = seq.seq_q;
    item.q_begin = seq.q_begin;
    item.k_begin = seq.k_begin;
    item.first_key = seq.first_key;
    item.end_key = seq.end_key;
    item.diagonal = seq.diagonal;
    // From where the first row's tiles begin to where the last row's end: what `KeyRange` gives
    // the two consumers.
    const int last = min(row + kItemRows, seq.seq_q) - 1;
    const int begin = seq.first_visible(row);
    const int second = min(row + kConsumerRows, seq.seq_q - 1);  // the second consumer's first row
    const int least = tiles_down<Config::kBlockN>(seq.first_visible(second) - begin) + 1;
    item.first_column = begin;
    item.tiles = max(least, tiles_up<Config::kBlockN>(seq.end_visible(last) - begin));
    return true;
  }
};

}  // namespace diffattn::cuda::sm90
