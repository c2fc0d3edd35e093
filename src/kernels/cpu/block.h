// SPDX-License-Identifier: Apache-2.0
//
// The interface between the host code (src/kernels/cpu/host, compiled for any x86-64) and the tile
// code (one translation unit per instruction set): plain structs of pointers and numbers. They have
// no member functions and no constructors. The compiler would emit such a function once with and
// once without wide instructions under one name, and the linker would keep either copy.
//
// Terms of the CPU kernels:
//   tile       R x W accumulators of one micro-kernel call
//   strip      R consecutive rows: the height of a tile
//   panel      W consecutive columns, usually keys: the width of a tile
//   key block  kKeyBlock consecutive keys
//   stretch    the key blocks whose maps scratch memory holds at once; usually all keys
//   block      the query rows of one task, a whole number of strips after padding; once per head
//              if several heads share map 2
//   map        p1 or p2 [rows][keys], stored unnormalised as e = exp2(s - ref)
//   ref        the offset subtracted from a row's scores before exp2 (online_softmax.h)
//   operand    4 bytes of a packed matrix: one fp32, or two bf16 adjacent in the summed dimension
//   slab       a private copy of dk and dv that a fixed set of blocks adds to
//   odd row    a row that holds a NaN or an infinity
#pragma once

#include <cstdint>

#include "diffattn/kernels/params.h"

namespace diffattn::cpu {

inline constexpr int kMaxBlockRows = 192;

/// Rows of one head: row n starts at data + n * stride elements.
struct Matrix {
  const void* data;
  int64_t stride;
  Dtype dtype;
  int64_t rows;
  int64_t width;
};

/// One kv head, packed as right operands of tile products. Keys are padded with zeros to whole
/// panels. The middle dimension of each shape is the summed one; bf16 pairs halve it.
struct PackedKeys {
  int64_t panels;
  const void* kt[2];         // [panels][D][W], for q k^T
  const void* v;             // [ceil(Dv / W)][panels * W][W], for p v
  const void* vt;            // backward: [panels][Dv][W], for dO v^T
  const void* k[2];          // backward: [ceil(D / W)][panels * W][W], for ds k
  const uint32_t* odd_v;     // [panels]: bit j is set if row j of the panel is odd. Odd rows are
  const uint32_t* odd_k[2];  // zero in `v` and `k`; kernels add them to the rows that see them.
  Matrix v_rows;
  Matrix k_rows[2];
};

/// One (head, query) row of a block.
struct Row {
  const void* q[2];    // [D]
  int64_t begin, end;  // columns it sees before the mask applies
  const void* mask;    // its row of the mask, or null
  float lambda;
  float ref[2];  // first ref in log2 units: a saved lse, or 0
};

/// The inputs of both maps of a block. All rows read the same kv head. With several heads, row i
/// of all heads reads the same q2, sees the same columns and has the same mask.
struct MapsBlock {
  const Row* rows;  // [heads][count]
  int count;
  int heads;  // heads that share map 2
  Dtype dtype;
  int64_t head_dim;
  const PackedKeys* keys;
  float scale[2];  // scale * log2(e), because the kernels use exp2
  MaskKind mask_kind;
  Dtype mask_dtype;
  int64_t mask_stride;  // elements from column to column
  int64_t map_panels;   // panels of the maps that the scratch memory holds
};

/// The epilogue from O to out.
struct EpilogueBlock {
  bool norm;
  float eps;
  const float* gain;  // [Dv]: out_scale * weight
};

struct ForwardRow {
  void *out, *o, *o2;  // [Dv]; o and o2 may be null
  float* lse[2];       // may be null
};

struct ForwardBlock {
  MapsBlock maps;
  const ForwardRow* rows;  // [heads][count]
  int64_t value_dim;
  EpilogueBlock epilogue;
  bool stretches;  // true if the maps of all keys do not fit into scratch memory at once
};

/// Several kv heads with few rows each, decoded together, one panel of keys at a time.
struct DecodeGroup {
  const ForwardBlock* heads;  // [count]: adjacent kv heads
  float* const* parts;        // [count]: the partial results of each head (DecodePart)
  int count;
  bool interleaved;  // true if row n of k1, k2 and v holds all these heads without gaps
  bool resumes;      // true: adds keys to the parts of an earlier call
};

struct BackwardRow {
  const void* dout;     // [Dv]
  const void* o;        // [Dv], or null
  void* dq[2];          // [D], or null; dq[1] is stored with the last head
  float* dlambda;       // this row's part, 0 on entry; or null
  float* dmask;         // this row of dmask, or null
  const float* dstats;  // [kStatCount] for StatsGradient, else null
};

struct BackwardBlock {
  MapsBlock maps;
  const BackwardRow* rows;  // [heads][count]
  int64_t value_dim;
  EpilogueBlock epilogue;
  float scale[2];        // without log2(e)
  Dtype dq_dtype[2];     // of BackwardRow::dq
  int64_t dmask_stride;  // elements from column to column
  bool products;         // false: compute dmask only
  /// The slab's sums, in tiles: [ceil(N / R)][ceil(width / W)][R][W]. The inner tile is [W][R] if
  /// the tile code computes dk^T and dv^T (Gradients::kTurned).
  float *dk[2], *dv;
  uint8_t* begun;  // [ceil(N / R)]: 0 while this strip of dk and dv is uninitialised, then 1
  double* dgain;   // [Dv]: sum over rows of dout * O * rstd, or null
};

struct StatsBlock {
  MapsBlock maps;
  float* const* stats;  // [count]: each row's output [kStatCount]
  float sparse_threshold;
};

/// Columns [col_begin, col_end) of the maps, downsampled to `cols` cells.
struct MapBlock {
  MapsBlock maps;
  float* const* cells;  // [count]: each row's cells of p1; p2 and A follow, map_stride apart
  int64_t col_begin, col_end, cols;
  int64_t map_stride;
};

/// One gradient to be summed over slabs, in the tiles of BackwardBlock.
struct SlabSum {
  const float* tiles;    // of the first slab
  const uint8_t* begun;  // of the first slab
  int64_t slabs;
  int64_t tiles_stride, begun_stride;  // from slab to slab
  float factor;                        // multiplies the sum
  int64_t width;
  Dtype dtype;  // of the result
};

/// The entry points of one instruction set. Functions named *_scratch return bytes.
struct TileCode {
  int rows;                         // R: rows of a tile
  int columns;                      // W: columns of a tile
  int pair;                         // elements of an operand: 1 fp32 or 2 bf16
  int64_t (*depth)(int64_t width);  // operands that `width` elements take along a summed dimension
  int64_t (*forward_scratch)(int block_rows, int64_t map_panels, int64_t d, int64_t dv);
  int64_t (*backward_scratch)(int block_rows, int heads, int64_t map_panels, int64_t d, int64_t dv);
  /// Packs one panel of the rows of `in` as columns: out [width][W]. Rows outside [first, end)
  /// become zeros.
  void (*pack_transposed)(const Matrix* in, int64_t first, int64_t end, int64_t panel, void* out);
  /// Packs the same panel as rows: column panel c goes to out + c * column_stride operands. Returns
  /// a bit for each odd row and writes odd rows as zeros.
  uint32_t (*pack_rows)(const Matrix* in, int64_t first, int64_t end, int64_t panel,
                        int64_t column_stride, void* out);
  void (*forward)(const ForwardBlock* block, void* scratch);
  void (*backward)(const BackwardBlock* block, void* scratch);
  /// Row statistics, their gradients, and downsampled maps.
  int64_t (*stats_scratch)(int block_rows, int64_t map_panels, int64_t d);
  int64_t (*stats_backward_scratch)(int block_rows, int heads, int64_t map_panels, int64_t d,
                                    int64_t dv);
  int64_t (*map_scratch)(int block_rows, int64_t map_panels, int64_t d);
  void (*stats)(const StatsBlock* block, void* scratch);
  void (*stats_backward)(const BackwardBlock* block, void* scratch);
  void (*map)(const MapBlock* block, void* scratch);
  /// decode computes the partial results of a few rows over the unpacked keys [first, end), or adds
  /// these keys to them.
  /// decode_join combines the parts of all chunks of a head and stores its outputs.
  int64_t (*decode_part_floats)(int rows, int64_t dv);
  void (*decode)(const DecodeGroup* group, int64_t first, int64_t end);
  void (*decode_join)(const ForwardBlock* block, int64_t chunks, float* parts);
  /// Stores rows [n, n + count) of a SlabSum to out[0 .. count - 1]; n is a multiple of R and
  /// count <= R.
  void (*store_sums)(const SlabSum* sum, int64_t n, int count, void* const* out);
};

}  // namespace diffattn::cpu
