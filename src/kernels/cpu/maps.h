// SPDX-License-Identifier: Apache-2.0
//
// Steps (1)-(3) for a block of query rows: both maps of these rows over a stretch of keys, stored
// unnormalised, with their row sums l:
//
//   e[m][row][n] = exp2(scale q k[n] + mask - ref)      0 where the row does not see column n
//
// Each exponential is computed once, straight from the accumulators of a score tile. Callers
// multiply e by the factors of set_norm() to get p1 and lambda p2. Everything is fp32: 8 B per row
// and key for both maps, so the caller chooses blocks whose maps stay in L2.
//
//   FMA tiles:  for each key block and map: all score tiles and exponentials, then check the sums
//   AMX:        all score tiles and exponentials, then check all sums at once
//
// If the check finds a row sum out of range, it changes the row's ref and recomputes. So ref (the
// approximate row maximum, online_softmax.h) may differ from one key block to the next; block_ref
// stores the one that each key block used.
//
// Heads that share map 2 take turns, in order: begin(h) starts head h. The first computes both
// maps, the others replace map 1 and keep map 2.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/fma_tile.h"
#include "kernels/cpu/mask.h"
#include "kernels/cpu/online_softmax.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

/// The rows of a tile that one step processes.
enum class TileHalf { kUpper, kLower, kBoth };
template <int kRows>
constexpr int first_row(TileHalf half) {
  return half == TileHalf::kLower ? kRows / 2 : 0;
}
template <int kRows>
constexpr int end_row(TileHalf half) {
  return half == TileHalf::kUpper ? kRows / 2 : kRows;
}
/// A half as a compile-time function argument.
template <TileHalf kHalf>
struct HalfOf {
  static constexpr TileHalf value = kHalf;
};

/// The visible part of a tile: nothing, everything, or some entries.
enum TileKind : uint8_t { kTileUnseen, kTileFull, kTileMasked };

template <class Isa>
struct Maps {
  using Vec = typename Isa::Vec;
  using Operand = typename Isa::Operand;
  using Tile = typename Isa::Tile;
  static constexpr int kRows = Isa::kRows, kCols = Isa::kCols, kLanes = Isa::kLanes;
  static constexpr int kBlockPanels = kKeyBlock / kCols;

  const MapsBlock& block;
  const int rows;  // padded to whole strips; padding rows repeat the last row's range
  const int strips;
  const TileMask<Isa> mask{block};

  // Scratch.
  Operand* q[2];         // [strips], packed for Tile::multiply_packed
  float* e[2];           // [panels][rows][W]
  uint8_t* kinds;        // [panels][strips]: TileKind
  uint32_t* seen_bits;   // [panels][rows]: visible columns, valid in masked tiles
  int64_t* columns_end;  // [strips]: end of the columns that any row may see, ignoring the mask
  float* bias;           // [R][W]: additive mask of one tile
  float* sums[2];        // [R][W]: scores of one tile (AMX)
  float* block_ref[2];   // [key blocks][rows]
  uint8_t* far[2];       // [strips]: 1 if any |ref| exceeds kNearRef
  OnlineSoftmax<Isa> softmax[2];

  int head = 0;   // the current head
  int fresh = 2;  // maps that the current head computes: 2 for the first head, then 1
  // The most recently computed stretch.
  int64_t origin = 0;  // its first panel
  int64_t panels = 0;
  bool moved = false;  // AMX: true if a ref changed in check_at_once()

  static int padded(int count) { return (count + kRows - 1) / kRows * kRows; }

  Maps(const MapsBlock& in, Carver<Isa>& carver)
      : block(in), rows(padded(in.count)), strips(rows / kRows) {
    for (int m = 0; m < 2; ++m) {
      q[m] = carver.template take<Operand>(strips * strip_operands() + kLanes);
      e[m] = carver.template take<float>(in.map_panels * rows * kCols);
      block_ref[m] = carver.template take<float>((in.map_panels / kBlockPanels + 1) * rows);
      far[m] = carver.template take<uint8_t>(strips);
      softmax[m].carve(rows, carver);
    }
    kinds = carver.template take<uint8_t>(in.map_panels * strips);
    seen_bits = carver.template take<uint32_t>(in.map_panels * rows);
    columns_end = carver.template take<int64_t>(strips);
    bias = carver.template take<float>(kRows * kCols);
    for (int m = 0; m < 2; ++m) {
      sums[m] = carver.template take<float>(Isa::kOverlap ? 2 * kRows * kCols : 0);
      if (Isa::kOverlap && sums[m] != nullptr) sums[m] = beside(sums[m], e[m]);
    }
  }

  int64_t strip_operands() const { return Isa::Pack::strip_operands(block.head_dim); }
  /// Returns the index of row i < count of the current head in the rows of all heads.
  int index(int i) const { return head * block.count + i; }
  const Row& row(int i) const { return block.rows[index(i < block.count ? i : block.count - 1)]; }

  /// Finds the panels that any row may see, ignoring the mask. Rounds first_panel down to the start
  /// of a key block.
  void range(int64_t& first_panel, int64_t& end_panel) const {
    int64_t begin = INT64_MAX, end = 0;
    for (int i = 0; i < block.count; ++i) {
      if (block.rows[i].begin >= block.rows[i].end) continue;
      if (block.rows[i].begin < begin) begin = block.rows[i].begin;
      if (block.rows[i].end > end) end = block.rows[i].end;
    }
    first_panel = begin >= end ? 0 : begin / kKeyBlock * kBlockPanels;
    end_panel = begin >= end ? 0 : (end + kCols - 1) / kCols;
  }

  /// Starts head h: packs q and resets the softmax state of the maps that it computes.
  void begin(int h = 0) {
    head = h;
    fresh = h == 0 ? 2 : 1;
    for (int m = 0; m < fresh; ++m) {
      for (int s = 0; s < strips; ++s) {
        const void* pointers[kRows];
        for (int i = 0; i < kRows; ++i) {
          const int r = s * kRows + i;
          pointers[i] = r < block.count ? row(r).q[m] : nullptr;
        }
        Isa::Pack::strip(pointers, block.dtype, block.head_dim, q[m] + s * strip_operands());
      }
      for (int i = 0; i < rows; ++i) softmax[m].start(i, row(i).ref[m]);
    }
  }

  /// Computes panels [first, end). `first` starts a key block, and end - first <= map_panels.
  void compute(int64_t first, int64_t end) {
    begin_stretch(first, end);
    if constexpr (Isa::kOverlap) {
      for (int m = 0; m < fresh; ++m) score(m, 0, panels);
      check_at_once();
    } else {
      for (int64_t p = 0; p < panels; p += kBlockPanels) {
        for (int m = 0; m < fresh; ++m) compute_key_block(m, p, end_of_key_block(p));
      }
    }
  }

  /// AMX only: computes panels [first, end) and calls body(p, last) after each key block [p, last),
  /// while its e is still in L2. body reads e relative to the first ref. Those values remain valid
  /// unless `moved` is true at the end.
  template <class Body>
  void compute(int64_t first, int64_t end, const Body& body) {
    begin_stretch(first, end);
    for (int64_t p = 0; p < panels; p += kBlockPanels) {
      for (int m = 0; m < fresh; ++m) {
        score(m, p, end_of_key_block(p));
        for (int s = 0; s < strips; ++s) set_block_ref(m, s, p);
      }
      body(p, end_of_key_block(p));
    }
    check_at_once();
  }
  int64_t end_of_key_block(int64_t first) const {
    return first + kBlockPanels < panels ? first + kBlockPanels : panels;
  }

  /// Starts head h and computes its maps of all keys.
  void compute_all(int h = 0) {
    begin(h);
    int64_t first, end;
    range(first, end);
    compute(first, end);
  }

  /// Sets norm_of [2][rows] to 1 / l1 and lambda / l2; 0 for padding rows.
  void set_norm(float* const norm_of[2]) const {
    for (int i = 0; i < rows; ++i) {
      const bool used = i < block.count;
      norm_of[0][i] = used ? softmax[0].inverse(i) : 0.0f;
      norm_of[1][i] = used ? softmax[1].inverse(i) * row(i).lambda : 0.0f;
    }
  }

  /// Returns the offset in floats of a strip's prefetches. With AVX-512, a row of a panel is two
  /// cache lines: even strips prefetch the first line of the next panel's rows, odd strips the
  /// second.
  static int asked_half(int s) { return s % 2 * (kCols * 4 / 128) * kLanes; }

  TileKind kind(int64_t panel, int s) const {
    return static_cast<TileKind>(kinds[panel * strips + s]);
  }
  /// True if row i sees column j of the panel.
  bool sees(int64_t panel, int i, int j) const {
    const TileKind k = kind(panel, i / kRows);
    return k == kTileFull || (k == kTileMasked && (seen_bits[panel * rows + i] >> j & 1u) != 0);
  }
  /// Returns the offset in e of the only entry that row i sees, or -1 if it sees none or several.
  int64_t only_entry(int i) const {
    int64_t only = -1;
    for (int64_t p = 0; p < panels; ++p) {
      const TileKind k = kind(p, i / kRows);
      const uint32_t bits = k == kTileMasked ? seen_bits[p * rows + i] : 0;
      if (k == kTileFull || (bits & (bits - 1)) != 0) return -1;
      if (bits == 0) continue;
      if (only >= 0) return -1;
      only = (p * rows + i) * kCols + __builtin_ctz(bits);
    }
    return only;
  }
  float* tile(int m, int64_t panel, int s) const {
    return e[m] + (panel * rows + s * kRows) * kCols;
  }
  /// Returns exp2(ref of this key block - current ref), which rescales e of the key block to the
  /// current ref; 1 unless ref has changed since.
  float catch_up(int m, int64_t panel, int i) const {
    const float then = block_ref[m][panel / kBlockPanels * rows + i], now = softmax[m].ref[i];
    return then == now ? 1.0f : __builtin_exp2f(then - now);
  }
  /// AMX only: runs tile products in parallel with vector code, over the visible tiles of panels
  /// [first, last). start_tile(t, p, s) leaves the product of a tile in tile registers. at(p, s)
  /// returns the memory to store it to, and finish(half, p, s) processes one half of it there.
  ///
  /// Between the store of a half and the finish() that reads it, the loop calls finish() once for
  /// the other half. It stores a half only after finish() has read the same half of the previous
  /// tile. This order avoids two stalls:
  ///   - A load of data that a tile store wrote waits until the store has reached L1.
  ///   - A load also waits for an unrelated tile store whose address has the same low 12 bits. A
  ///     tile is 4 KB, so these bits agree for the same half of adjacent tiles.
  template <class Start, class At, class Finish>
  DIFFATTN_INLINE void overlap(int64_t first, int64_t last, const Start& start_tile, const At& at,
                               const Finish& finish) const {
    int64_t index = seen_from(first * strips, last * strips);
    const int64_t end = last * strips;
    if (index == end) return;
    Tile t;
    start_tile(t, index / strips, static_cast<int>(index % strips));
    t.store_upper(at(index / strips, static_cast<int>(index % strips)), kCols);
    while (index < end) {
      const int64_t p = index / strips;
      const int s = static_cast<int>(index % strips);
      t.store_lower(at(p, s), kCols);
      index = seen_from(index + 1, end);
      const int64_t next_p = index / strips;
      const int next_s = static_cast<int>(index % strips);
      if (index < end) start_tile(t, next_p, next_s);
      finish(HalfOf<TileHalf::kUpper>{}, p, s);
      if (index < end) t.store_upper(at(next_p, next_s), kCols);
      finish(HalfOf<TileHalf::kLower>{}, p, s);
    }
  }

  /// Returns the number of columns from panel `begin` to the last column that the strip may see, at
  /// most to the end of panel `end` - 1.
  int64_t run_columns(int s, int64_t begin, int64_t end) const {
    const int64_t seen = columns_end[s] - (origin + begin) * kCols;
    const int64_t count = (end - begin) * kCols;
    return seen < count ? seen : count;
  }

 private:
  /// Returns the address in `memory` (two tiles long) whose low 12 bits equal those of `other`. A
  /// load of row i from there then agrees in these bits only with stores to row i of a tile of
  /// `other`. The last such store was a whole tile ago, so the load does not stall.
  static float* beside(float* memory, const float* other) {
    constexpr uintptr_t kBytes = kRows * kCols * sizeof(float);
    const uintptr_t from = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t gap = (reinterpret_cast<uintptr_t>(other) - from) % kBytes;
    return memory + gap / sizeof(float);
  }

  /// Returns the index p * strips + s of the first visible tile from `index` on, or `end`.
  int64_t seen_from(int64_t index, int64_t end) const {
    while (index < end && kinds[index] == kTileUnseen) ++index;
    return index;
  }

  /// Sets the TileKind of every tile of the stretch.
  void classify() {
    const bool masked = block.mask_kind != MaskKind::kNone;
    for (int s = 0; s < strips; ++s) {
      int64_t least_begin = INT64_MAX, most_begin = 0, least_end = INT64_MAX, most_end = 0;
      for (int i = s * kRows; i < (s + 1) * kRows; ++i) {
        const Row& r = row(i);
        least_begin = r.begin < least_begin ? r.begin : least_begin;
        most_begin = r.begin > most_begin ? r.begin : most_begin;
        least_end = r.end < least_end ? r.end : least_end;
        most_end = r.end > most_end ? r.end : most_end;
      }
      columns_end[s] = most_end;
      for (int64_t p = 0; p < panels; ++p) {
        const int64_t column = (origin + p) * kCols;
        TileKind k = kTileUnseen;
        if (column < most_end && column + kCols > least_begin) {
          const bool full = !masked && column >= most_begin && column + kCols <= least_end;
          k = full ? kTileFull : masked_kind(p, s);
        }
        kinds[p * strips + s] = k;
      }
    }
  }

  TileKind masked_kind(int64_t panel, int s) {
    uint32_t any = 0;
    for (int i = s * kRows; i < (s + 1) * kRows; ++i) {
      any |= seen_bits[panel * rows + i] = mask.bits(row(i), (origin + panel) * kCols);
    }
    return any != 0 ? kTileMasked : kTileUnseen;
  }

  void begin_stretch(int64_t first, int64_t end) {
    origin = first;
    panels = end - first;
    moved = false;
    classify();
    for (int m = 0; m < fresh; ++m) {
      softmax[m].save(0, rows);
      for (int s = 0; s < strips; ++s) set_far(m, s);
    }
  }

  void compute_key_block(int m, int64_t first, int64_t last) {
    softmax[m].save(0, rows);
    for (int s = 0; s < strips; ++s) set_far(m, s);
    for (int64_t p = first; p < last; ++p) {
      for (int s = 0; s < strips; ++s) score_tile(m, p, s);
    }
    for (int s = 0; s < strips; ++s) {
      check_strip(m, s, first, last);
      set_block_ref(m, s, first);
    }
  }
  void set_block_ref(int m, int s, int64_t first) {
    float* refs = block_ref[m] + first / kBlockPanels * rows;
    for (int i = s * kRows; i < (s + 1) * kRows; ++i) refs[i] = softmax[m].ref[i];
  }

  /// AMX only: computes the exponentials of panels [first, last). Starts each product before the
  /// exponentials of the previous tile. Stores all scores to one buffer in L1, because a tile store
  /// that misses L1 takes three times as long.
  void score(int m, int64_t first, int64_t last) {
    overlap(
        first, last, [&](Tile& t, int64_t p, int s) { start(t, m, p, s); },
        [&](int64_t, int) { return sums[m]; },
        [&](auto half, int64_t p, int s) {
          exponentials<half.value>(typename Tile::Stored{sums[m]}, m, p, s);
        });
  }
  /// AMX only: checks the row sums once, after all key blocks, because a check after each key block
  /// would stall the tile products. A row whose sum is in range keeps its first ref.
  void check_at_once() {
    for (int m = 0; m < fresh; ++m) {
      for (int s = 0; s < strips; ++s) check_at_once(m, s);
    }
  }
  void check_at_once(int m, int s) {
    bool any = false;
    for (int i = s * kRows; i < (s + 1) * kRows; ++i) {
      any |= !softmax[m].suits(i) && sees_any(i, 0, panels);
    }
    moved |= any;
    if (any) {  // suits() has set `begun` for rows in range, so the recomputation keeps their ref
      for (int i = s * kRows; i < (s + 1) * kRows; ++i) softmax[m].restore(i);
    }
    for (int64_t first = 0; first < panels; first += kBlockPanels) {
      if (any) compute_key_block(m, s, first, end_of_key_block(first));
      set_block_ref(m, s, first);
    }
  }
  /// Recomputes one key block of one strip.
  void compute_key_block(int m, int s, int64_t first, int64_t last) {
    softmax[m].save(s * kRows, kRows);
    for (int64_t p = first; p < last; ++p) score_tile(m, p, s);
    check_strip(m, s, first, last);
  }

  void set_far(int m, int s) {
    far[m][s] = 0;
    for (int i = s * kRows; i < (s + 1) * kRows; ++i) far[m][s] |= softmax[m].near(i) ? 0 : 1;
  }

  void score_tile(int m, int64_t p, int s) {
    if (kind(p, s) == kTileUnseen) return;
    Tile t;
    multiply(t, m, p, s);
    exponentials<TileHalf::kBoth>(t, m, p, s);
  }

  /// Computes (1): t = q k^T.
  DIFFATTN_INLINE void multiply(Tile& t, int m, int64_t p, int s) const {
    t.zero();
    const Operand* right = keys(m, p);
    t.multiply_packed(q[m] + s * strip_operands(), right, Isa::Pack::steps(block.head_dim),
                      right + transposed_operands() + asked_half(s));
  }
  /// AMX only: computes the same product but leaves it in tile registers.
  DIFFATTN_INLINE void start(Tile& t, int m, int64_t p, int s) const {
    t.zero();
    const int64_t steps = Isa::Pack::steps(block.head_dim);
    t.multiply(q[m] + s * strip_operands(), steps, keys(m, p), kCols, steps);
  }

  template <TileHalf kHalf, class Sums>
  DIFFATTN_INLINE void exponentials(const Sums& t, int m, int64_t p, int s) {
    if (kind(p, s) == kTileFull && far[m][s] == 0) {
      exp_tile<kHalf, true>(t, m, p, s, nullptr);
    } else {
      exp_tile<kHalf, false>(t, m, p, s, tile_bias(p, s));
    }
  }

  const float* tile_bias(int64_t p, int s) {
    if (block.mask_kind != MaskKind::kAdditive) return nullptr;
    for (int i = 0; i < kRows; ++i) {
      mask.bias(row(s * kRows + i), (origin + p) * kCols, bias + i * kCols);
    }
    return bias;
  }

  int64_t transposed_operands() const { return Isa::Pack::transposed_operands(block.head_dim); }
  const Operand* keys(int m, int64_t p) const {
    return static_cast<const Operand*>(block.keys->kt[m]) + (origin + p) * transposed_operands();
  }

  /// Applies the scale and mask of (1) and the exponential of (2) (3), and adds up the row sums.
  /// kPlain: all entries are visible, and every |ref| is at most kNearRef.
  template <TileHalf kHalf, bool kPlain, class Sums>
  DIFFATTN_INLINE void exp_tile(const Sums& t, int m, int64_t p, int s, const float* biases) {
    const Vec scale = Isa::set1(block.scale[m]);
    const float* ref = softmax[m].ref + s * kRows;
    float* sum = softmax[m].sum + s * kRows * kLanes;
    float* out = tile(m, p, s);
    const uint32_t* bits = kind(p, s) == kTileMasked ? seen_bits + p * rows + s * kRows : nullptr;
    constexpr int kFrom = first_row<kRows>(kHalf), kTo = end_row<kRows>(kHalf);
#pragma GCC unroll 16
    for (int i = kFrom; i < kTo; ++i) {
      const Vec r = Isa::set1(ref[i]);
      Vec total = Isa::load(sum + i * kLanes);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        Vec x = t.row(i, h);
        if (kPlain || (biases == nullptr && softmax[m].near(s * kRows + i))) {
          x = Isa::fms(x, scale, r);
        } else {  // rounds the score before it subtracts ref, exactly as max_tile does
          const Vec bias_of =
              biases == nullptr ? Isa::zero() : Isa::load(biases + i * kCols + h * kLanes);
          x = Isa::sub(Isa::fma(x, scale, bias_of), r);
        }
        x = Isa::exp2(x);
        if (!kPlain && bits != nullptr) x = Isa::select(bits[i] >> (h * kLanes), x, Isa::zero());
        Isa::store(out + i * kCols + h * kLanes, x);
        total = Isa::add(total, x);
      }
      Isa::store(sum + i * kLanes, total);
    }
  }

  /// Checks the row sums of a strip after key block [first, last). If a sum is out of range, makes
  /// the row maximum the row's ref and recomputes the key block.
  void check_strip(int m, int s, int64_t first, int64_t last) {
    bool bad[kRows];
    bool any = false;
    for (int i = 0; i < kRows; ++i) {
      const int r = s * kRows + i;
      bad[i] = !softmax[m].suits(r) && sees_any(r, first, last);
      any |= bad[i];
    }
    if (!any) return;
    float maxima[kRows * kLanes];
    for (float& x : maxima) x = -__builtin_inff();
    for (int64_t p = first; p < last; ++p) {
      if (kind(p, s) != kTileUnseen) max_tile(m, p, s, maxima);
    }
    for (int i = 0; i < kRows; ++i) {
      const int r = s * kRows + i;
      softmax[m].restore(r);
      if (bad[i]) softmax[m].move(r, Isa::maximum(Isa::load(maxima + i * kLanes)));
    }
    set_far(m, s);
    for (int64_t p = first; p < last; ++p) score_tile(m, p, s);
  }

  bool sees_any(int i, int64_t first, int64_t last) const {
    for (int64_t p = first; p < last; ++p) {
      const TileKind k = kind(p, i / kRows);
      if (k == kTileFull || (k == kTileMasked && seen_bits[p * rows + i] != 0)) return true;
    }
    return false;
  }

  /// Updates maxima [R][lanes] with the visible scores of one tile, ignoring NaN.
  void max_tile(int m, int64_t p, int s, float* maxima) {
    const float* biases = tile_bias(p, s);
    Tile t;
    multiply(t, m, p, s);
    const Vec scale = Isa::set1(block.scale[m]);
    const bool full = kind(p, s) == kTileFull;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const uint32_t bits = full ? ~0u : seen_bits[p * rows + s * kRows + i];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const Vec added =
            biases == nullptr ? Isa::zero() : Isa::load(biases + i * kCols + h * kLanes);
        const Vec x = Isa::fma(t.row(i, h), scale, added);
        const Vec most = Isa::load(maxima + i * kLanes);
        Isa::store(maxima + i * kLanes, Isa::max(Isa::select(bits >> (h * kLanes), x, most), most));
      }
    }
  }
};

}  // namespace diffattn::cpu
