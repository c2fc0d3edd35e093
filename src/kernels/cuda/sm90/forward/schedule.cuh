// SPDX-License-Identifier: Apache-2.0
//
// Dynamic scheduler of the forward. A work item is 128 query rows of one (batch entry, head). One
// producer thread of a block takes item indices from a counter in global memory and writes the
// `Item` into shared memory, one item ahead of the consumers.
//
// Items are ordered by group of heads, then by query block, then by head. Under a causal mask or a
// window the last query block comes first, because under a causal mask it sees the most keys.
#pragma once

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/forward/arguments.cuh"
#include "kernels/cuda/sm90/forward/config.h"
#include "kernels/cuda/sm90/mask_columns.cuh"

namespace diffattn::cuda::sm90 {

/// The scheduler takes the next item when this many key tiles of the item are still to be loaded.
inline constexpr int kTakeTiles = 3;

/// A work item in shared memory. row < 0 marks the end.
struct alignas(16) Item {
  int row, head, batch, seq_q;  // row: first row, within its sequence
  int q_begin, k_begin;         // first row of the sequence in q, and in k and v
  int first_column, tiles;      // first column of the first key tile; tiles any row sees, >= 1
  int first_key, end_key;       // columns [first_key, end_key) are not padding
  int diagonal, kv_head;        // diagonal: see Sequence
};
static_assert(sizeof(Item) == kItemBytes);

/// Returns which half of the rows of item `number` a consumer has. The consumers swap halves from
/// item to item, because the second half may see one tile more.
__device__ inline int consumer_half(int consumer, int number) { return consumer ^ (number & 1); }

/// Returns columns / kBlockN, rounded down or up; 0 for negative `columns`.
template <int kBlockN>
__device__ inline int tiles_down(int columns) {
  return static_cast<int>(static_cast<unsigned>(max(0, columns)) / kBlockN);
}
template <int kBlockN>
__device__ inline int tiles_up(int columns) {
  return tiles_down<kBlockN>(max(0, columns) + kBlockN - 1);
}

/// Key tiles [begin, end), at least one, that any of the rows [row, row + kConsumerRows) sees. In
/// the tiles [full_begin, full_end) every row sees every column and has seen an earlier column.
/// Tiles count from column `origin`, the first column that the item's first row sees: with a window
/// this needs one tile less than tiles that begin at multiples of kBlockN.
struct KeyRange {
  int begin, full_begin, full_end, end;
  int last_columns;  // columns of tile end - 1 that some row sees

  template <int kBlockN>
  __device__ static KeyRange of(const Sequence& seq, int row, int origin) {
    const int first = min(row, seq.seq_q - 1), last = min(row + kConsumerRows, seq.seq_q) - 1;
    KeyRange range;
    range.begin = tiles_down<kBlockN>(seq.first_visible(first) - origin);
    range.end = max(range.begin + 1, tiles_up<kBlockN>(seq.end_visible(max(first, last)) - origin));
    // The first tile that every row sees from its first column on, plus one: that tile may hold the
    // first key that the last row sees.
    range.full_begin = tiles_up<kBlockN>(seq.first_visible(max(first, last)) - origin) + 1;
    range.full_end = min(range.end, tiles_down<kBlockN>(seq.end_visible(first) - origin));
    range.last_columns = seq.end_visible(max(first, last)) - origin - (range.end - 1) * kBlockN;
    return range;
  }
};

/// The columns [begin, end) that a thread's rows g and g + 8 see, relative to the thread's first
/// column of a tile. The callers read the item from shared memory, and such reads queue behind the
/// operand reads of wgmma; so they call `of` before they wait for the tile's scores. kLower: see
/// ConsumerItem.
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
  __device__ __forceinline__ void mask_end(float (&s)[kN]) const {
    mask_columns<false>(s, end[0], end[1]);
  }
  template <int kN>
  __device__ __forceinline__ void mask_begin(float (&s)[kN]) const {
    if constexpr (kLower) mask_columns<true>(s, begin[0], begin[1]);
  }
};

/// Returns x, which is the same in all lanes, in a form that the compiler knows to be uniform. It
/// then keeps addresses, descriptors and loop bounds in uniform registers. Otherwise each product
/// takes five more instructions, and the kernel loses a sixth of its throughput.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/// Returns the fields of Sequence that the consumers use. `coordinates` and `keys` are words 0 to 3
/// and 8 to 11 of the Item.
template <class T>
__device__ inline Sequence sequence_of(const ForwardArguments<T>& args, int4 coordinates,
                                       int4 keys) {
  Sequence seq{};
  seq.seq_q = coordinates.w;
  seq.first_key = keys.x;
  seq.end_key = keys.y;
  seq.diagonal = keys.z;
  seq.window = args.shape.window;
  seq.bounded = args.shape.bounded;
  return seq;
}

/// Takes work items and publishes them in shared memory. Runs in one thread of a block. In a
/// cluster it runs in block 0 and sends each item to block 1.
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
      // Wait for kTake: an item taken earlier could not go to a block that is free sooner.
      if (count > 0) {
        ptx::barrier_wait_idle(smem + Config::kTake, (count - 1) & 1);
        index = take();
      }
      Item& item = items[slot];  // `find` fills it in place, since this thread has few registers
      while (!find(index, item)) index = take();
      if constexpr (Config::kCluster == 2) send(slot);
      ptx::barrier_arrive(smem + Config::kItemFull + 8 * slot);
      if (index >= args.blocks * args.heads) return;
    }
  }

  /// Copies the item to block 1 of the cluster and counts its bytes at block 1's kItemFull.
  __device__ __forceinline__ void send(int slot) const {
    const uint32_t item = smem + Config::kItems + slot * kItemBytes;
    const uint32_t full = ptx::remote_address(smem + Config::kItemFull + 8 * slot, 1);
#pragma unroll 1
    for (int at = 0; at < kItemBytes; at += 16) {
      ptx::store_remote(ptx::remote_address(item + at, 1), full, ptx::load_smem_float4(item + at));
    }
  }

  /// Returns the next item index of the grid. The counter starts after the blocks' first items.
  __device__ __forceinline__ int take() const {
    ptx::wait_for_previous_kernel();  // clear_kernel has set the counter to 0
    return static_cast<int>(gridDim.x) / Config::kCluster + atomicAdd(args.state.next_item, 1);
  }

  /// Fills `item` for an index, or sets row = -1 if the index is past the end. Returns false if no
  /// rows belong to the index, as happens with packed sequences.
  __device__ __forceinline__ bool find(int index, Item& item) const {
    if (index >= args.blocks * args.heads) {
      item.row = -1;
      return true;
    }
    const int per_group = args.heads_in_cache * args.blocks;
    const int first_head = index / per_group * args.heads_in_cache;
    const int in_group = index % per_group;
    const int heads = min(args.heads_in_cache, args.heads - first_head);
    const int head = first_head + in_group % heads;
    int block = in_group / heads;
    if (args.shape.bounded) block = args.blocks - 1 - block;
    int batch = head / args.shape.heads, h = head % args.shape.heads;
    if (args.packed) {
      batch = sequence_at<kItemRows>(args.shape.cu_seqlens_q, args.shape.batch, block);
      h = head;
      block -= first_tile_index<kItemRows>(args.shape.cu_seqlens_q, batch);
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
    // The union of the tiles that `KeyRange` gives the two consumers.
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
