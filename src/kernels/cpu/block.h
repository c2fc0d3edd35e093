// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/params.h"

/// What the host side (src/kernels/cpu/host, baseline instructions) hands to the tile code (per-ISA
/// translation units): plain structs of pointers and numbers. They have no member functions and no
/// constructors, because such a function would be compiled once with and once without wide
/// instructions under one name, and the linker would pick either.
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

/// One kv head, packed for tiles of W columns; keys padded with zeros to whole panels of W.
/// Operand: float, or a pair of bf16 that are neighbours along the summed dimension.
struct PackedKeys {
  int64_t panels;            // of W keys
  const void* kt[2];         // [panels][D][W]: the right side of q k^T
  const void* v;             // [ceil(Dv / W)][panels * W][W]: the right side of p v
  const void* vt;            // backward: [panels][Dv][W], of dO v^T
  const void* k[2];          // backward: [ceil(D / W)][panels * W][W], of ds k
  const uint32_t* odd_v;     // [panels]: bit j is set where row j of a panel is not finite. Such a
  const uint32_t* odd_k[2];  // row is zero in `v`, `k`, and is added to those rows that see it.
  Matrix v_rows;
  Matrix k_rows[2];
};

/// One (head, query) row of a block.
struct Row {
  const void* q[2];    // [D]
  int64_t begin, end;  // columns it may see before any mask
  const void* mask;    // its row of the mask, or null
  float lambda;
  float ref[2];  // where its exponentials start: log2-units, e.g. a known lse; else 0
};

/// The part of a block that the two maps are made from. All rows read the same kv head.
struct MapsBlock {
  const Row* rows;
  int count;
  Dtype dtype;
  int64_t head_dim;
  const PackedKeys* keys;
  float scale[2];  // of scores, times log2 e
  MaskKind mask_kind;
  Dtype mask_dtype;
  int64_t mask_stride;  // from column to column
  int64_t map_panels;   // how many panels of the maps the scratch memory holds
};

/// The part that says what happens between O and out.
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
  const ForwardRow* rows;
  int64_t value_dim;
  EpilogueBlock epilogue;
  bool stretches;  // the maps of all keys do not fit at once
};

/// The few rows of several kv heads that are decoded together, panel by panel.
struct DecodeGroup {
  const ForwardBlock* heads;  // [count], neighbours
  float* const* parts;        // of each head
  int count;
  bool interleaved;  // row n of k1, k2 and v holds all these heads, with nothing between
};

struct BackwardRow {
  const void* dout;     // [Dv]
  const void* o;        // [Dv], or null
  void* dq[2];          // [D], or null
  float* dlambda;       // of this row alone; 0 at first
  float* dmask;         // this row of dmask, or null
  const float* dstats;  // [kStatCount], where the gradient is that of the statistics
};

struct BackwardBlock {
  MapsBlock maps;
  const BackwardRow* rows;
  int64_t value_dim;
  EpilogueBlock epilogue;
  float scale[2];
  int64_t dmask_stride;  // from column to column
  bool products;         // false: only dmask is wanted
  /// Sums over blocks, tile by tile: [ceil(N / R)][ceil(width / W)][R][W], or [W][R] where the tile
  /// code sums transposes.
  float *dk[2], *dv;
  uint8_t* begun;  // [ceil(N / R)]: does this strip of dk and dv hold anything yet? Zero at first.
  double* dgain;   // [Dv]: sum of dout o O * rstd
};

struct StatsBlock {
  MapsBlock maps;
  float* const* stats;  // of each row: [kStatCount]
  float sparse_threshold;
};

/// Columns [col_begin, col_end) of the maps in `cols` cells.
struct MapBlock {
  MapsBlock maps;
  float* const* cells;  // of each row: where its cells of p1 are; those of p2 and A map_stride on
  int64_t col_begin, col_end, cols;
  int64_t map_stride;
};

/// The sum over slabs of one gradient, in tiles as above.
struct SlabSum {
  const float* tiles;  // of the first slab
  const uint8_t* begun;
  int64_t slabs;
  int64_t tiles_stride, begun_stride;  // from slab to slab
  float factor;
  int64_t width;
  Dtype dtype;  // of the result
};

/// What one instruction set offers. Sizes in floats unless said otherwise.
struct TileCode {
  int rows;                         // R: rows of a tile
  int columns;                      // W: its columns
  int pair;                         // how many elements an operand holds; operands are 4 bytes wide
  int64_t (*depth)(int64_t width);  // operands that `width` elements take along a summed dimension
  int64_t (*forward_scratch)(int block_rows, int64_t map_panels, int64_t d, int64_t dv);  // bytes
  int64_t (*backward_scratch)(int block_rows, int64_t map_panels, int64_t d, int64_t dv);
  /// Panel `panel` of rows [first, end) of `in`: out [width][W].
  void (*pack_transposed)(const Matrix* in, int64_t first, int64_t end, int64_t panel, void* out);
  /// The same panel as rows: column panel c goes to out + c * column_stride operands. Returns which
  /// rows are not finite; these are written as zeros.
  uint32_t (*pack_rows)(const Matrix* in, int64_t first, int64_t end, int64_t panel,
                        int64_t column_stride, void* out);
  void (*forward)(const ForwardBlock* block, void* scratch);
  void (*backward)(const BackwardBlock* block, void* scratch);
  /// Of the statistics and the maps themselves.
  int64_t (*stats_scratch)(int block_rows, int64_t map_panels, int64_t d);
  int64_t (*stats_backward_scratch)(int block_rows, int64_t map_panels, int64_t d, int64_t dv);
  int64_t (*map_scratch)(int block_rows, int64_t map_panels, int64_t d);
  void (*stats)(const StatsBlock* block, void* scratch);
  void (*stats_backward)(const BackwardBlock* block, void* scratch);
  void (*map)(const MapBlock* block, void* scratch);
  /// A few rows against keys [first, end), unpacked, to `parts`; then all chunks of a head to
  /// results.
  int64_t (*decode_part_floats)(int rows, int64_t dv);
  void (*decode)(const DecodeGroup* group, int64_t first, int64_t end);
  void (*decode_join)(const ForwardBlock* block, int64_t chunks, float* parts);
  /// Rows [n, n + count) of a SlabSum to out[0 .. count - 1]; n is a multiple of R, count <= R.
  void (*store_sums)(const SlabSum* sum, int64_t n, int count, void* const* out);
};

}  // namespace diffattn::cpu
