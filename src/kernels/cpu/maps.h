// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/fma_tile.h"
#include "kernels/cpu/mask.h"
#include "kernels/cpu/online_softmax.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

/// The rows of a tile that are dealt with at once.
enum class TileHalf { kUpper, kLower, kBoth };
template <int kRows>
constexpr int first_row(TileHalf half) {
  return half == TileHalf::kLower ? kRows / 2 : 0;
}
template <int kRows>
constexpr int end_row(TileHalf half) {
  return half == TileHalf::kUpper ? kRows / 2 : kRows;
}
/// A half as an argument.
template <TileHalf kHalf>
struct HalfOf {
  static constexpr TileHalf value = kHalf;
};

/// How much of a tile the rows of a strip may see.
enum TileKind : uint8_t { kTileUnseen, kTileFull, kTileMasked };

/// Steps (1)-(3) for a block of query rows: both maps of these rows over a stretch of keys, kept as
///
///   e[m][row][n] = exp2(score - ref)        0 where the row may not see column n
///
/// with their row sums. Exponentials are taken once, straight from the sums of a score tile;
/// nothing is divided: p = e * weight where it is used. The memory is 8 B * rows * keys, so a block
/// is chosen small enough for the maps to stay in L2.
///
/// Keys are cut into panels of W columns, panels into key blocks (kKeyBlock). `ref` may move from
/// one key block to the next; each remembers its own.
template <class Isa>
struct Maps {
  using Vec = typename Isa::Vec;
  using Operand = typename Isa::Operand;
  using Tile = typename Isa::Tile;
  static constexpr int kRows = Isa::kRows, kCols = Isa::kCols, kLanes = Isa::kLanes;
  static constexpr int kBlockPanels = kKeyBlock / kCols;

  const MapsBlock& block;
  const int rows;  // padded to whole strips; the rows that were added repeat the last one's range
  const int strips;
  const TileMask<Isa> mask{block};

  // Scratch.
  Operand* q[2];         // [strips] packed for Tile::multiply_packed
  float* e[2];           // [panels][rows][W]
  uint8_t* kinds;        // [panels][strips]
  uint32_t* seen_bits;   // [panels][rows], of masked tiles
  int64_t* columns_end;  // [strips]: what any row may see
  float* bias;           // [R][W] of one tile
  float* sums[2];        // [R][W]: scores of one tile, where products are overlapped
  float* block_ref[2];   // [blocks][rows]
  uint8_t* far[2];       // [strips]: is any ref beyond kNearRef?
  OnlineSoftmax<Isa> softmax[2];

  // Of the stretch that was computed last.
  int64_t origin = 0;  // its first panel
  int64_t panels = 0;
  bool moved = false;  // was a ref moved, where panels are computed at once?

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
  const Row& row(int i) const { return block.rows[i < block.count ? i : block.count - 1]; }

  /// The panels that any row may see, from a whole key block on.
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

  void begin() {
    for (int m = 0; m < 2; ++m) {
      for (int s = 0; s < strips; ++s) {
        const void* pointers[kRows];
        for (int i = 0; i < kRows; ++i) {
          const int r = s * kRows + i;
          pointers[i] = r < block.count ? block.rows[r].q[m] : nullptr;
        }
        Isa::Pack::strip(pointers, block.dtype, block.head_dim, q[m] + s * strip_operands());
      }
      for (int i = 0; i < rows; ++i) softmax[m].start(i, row(i).ref[m]);
    }
  }

  /// Computes panels [first, end); `first` starts a key block, end - first <= map_panels.
  void compute(int64_t first, int64_t end) {
    begin_stretch(first, end);
    if constexpr (Isa::kOverlap) {
      for (int m = 0; m < 2; ++m) score(m, 0, panels);
      check_at_once();
    } else {
      for (int64_t p = 0; p < panels; p += kBlockPanels) {
        for (int m = 0; m < 2; ++m) compute_key_block(m, p, end_of_key_block(p));
      }
    }
  }

  /// The same where products have a unit of their own. body(p, last): e of the key block [p, last)
  /// was written just now, relative to the first ref; it will not change unless `moved`.
  template <class Body>
  void compute(int64_t first, int64_t end, const Body& body) {
    begin_stretch(first, end);
    for (int64_t p = 0; p < panels; p += kBlockPanels) {
      for (int m = 0; m < 2; ++m) {
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

  /// begin(), then all keys at once.
  void compute_all() {
    begin();
    int64_t first, end;
    range(first, end);
    compute(first, end);
  }

  /// norm [2][rows]: 1 / l1 and lambda / l2; 0 for rows that were added.
  void set_norm(float* const norm_of[2]) const {
    for (int i = 0; i < rows; ++i) {
      const bool used = i < block.count;
      norm_of[0][i] = used ? softmax[0].inverse(i) : 0.0f;
      norm_of[1][i] = used ? softmax[1].inverse(i) * row(i).lambda : 0.0f;
    }
  }

  /// A row of a panel is two cache lines with wide vectors: even strips ask for the first of the
  /// next panel's, odd ones for the second.
  static int asked_half(int s) { return s % 2 * (kCols * 4 / 128) * kLanes; }

  TileKind kind(int64_t panel, int s) const {
    return static_cast<TileKind>(kinds[panel * strips + s]);
  }
  /// May row i see column j of the panel?
  bool sees(int64_t panel, int i, int j) const {
    const TileKind k = kind(panel, i / kRows);
    return k == kTileFull || (k == kTileMasked && (seen_bits[panel * rows + i] >> j & 1u) != 0);
  }
  float* tile(int m, int64_t panel, int s) const {
    return e[m] + (panel * rows + s * kRows) * kCols;
  }
  /// exp2(ref of this key block - ref now): 1 unless ref moved since.
  float catch_up(int m, int64_t panel, int i) const {
    const float then = block_ref[m][panel / kBlockPanels * rows + i], now = softmax[m].ref[i];
    return then == now ? 1.0f : __builtin_exp2f(then - now);
  }
  /// Where products have a unit of their own: start(t, p, s) leaves the product of a tile that is
  /// seen in tile registers, at(p, s) is where it goes, finish(half, p, s) works on it there.
  ///
  /// The sums of half a tile are written half a tile before they are read, and not before that half
  /// of the tile before was read: what a load wants from a tile store must have reached L1, and a
  /// load waits as well for a tile store whose address is the same in the last 12 bits. A tile has
  /// 4 KB, so halves of neighbours, or of one place, are the same in these bits.
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

  /// Columns of panels [begin, end) up to the last one that the strip may see.
  int64_t run_columns(int s, int64_t begin, int64_t end) const {
    const int64_t seen = columns_end[s] - (origin + begin) * kCols;
    const int64_t count = (end - begin) * kCols;
    return seen < count ? seen : count;
  }

 private:
  /// The place in `memory`, two tiles, whose address has the same last 12 bits as `other`: a load
  /// then meets a store to the same row of `other` only after a whole tile.
  static float* beside(float* memory, const float* other) {
    constexpr uintptr_t kBytes = kRows * kCols * sizeof(float);
    const uintptr_t from = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t gap = (reinterpret_cast<uintptr_t>(other) - from) % kBytes;
    return memory + gap / sizeof(float);
  }

  /// The next tile that is seen, counted strip by strip and panel by panel.
  int64_t seen_from(int64_t index, int64_t end) const {
    while (index < end && kinds[index] == kTileUnseen) ++index;
    return index;
  }

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
    for (int m = 0; m < 2; ++m) {
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

  /// Where products have a unit of their own: each is started before the exponentials of the tile
  /// before it are taken. Scores go through one tile in L1: a tile store to a line that is not in
  /// L1 takes three times as long.
  void score(int m, int64_t first, int64_t last) {
    overlap(
        first, last, [&](Tile& t, int64_t p, int s) { start(t, m, p, s); },
        [&](int64_t, int) { return sums[m]; },
        [&](auto half, int64_t p, int s) {
          exponentials<half.value>(typename Tile::Stored{sums[m]}, m, p, s);
        });
  }
  /// That unit is busy only while products follow each other, so sums are looked at when all key
  /// blocks are done. A row whose sum is in range then keeps its first ref.
  void check_at_once() {
    for (int m = 0; m < 2; ++m) {
      for (int s = 0; s < strips; ++s) check_at_once(m, s);
    }
  }
  void check_at_once(int m, int s) {
    bool any = false;
    for (int i = s * kRows; i < (s + 1) * kRows; ++i) {
      any |= !softmax[m].suits(i) && sees_any(i, 0, panels);
    }
    moved |= any;
    if (any) {  // rows in range are `begun` now: they stay as they are
      for (int i = s * kRows; i < (s + 1) * kRows; ++i) softmax[m].restore(i);
    }
    for (int64_t first = 0; first < panels; first += kBlockPanels) {
      if (any) compute_key_block(m, s, first, end_of_key_block(first));
      set_block_ref(m, s, first);
    }
  }
  /// Of one strip.
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

  /// The product of (1).
  DIFFATTN_INLINE void multiply(Tile& t, int m, int64_t p, int s) const {
    t.zero();
    const Operand* right = keys(m, p);
    t.multiply_packed(q[m] + s * strip_operands(), right, Isa::Pack::steps(block.head_dim),
                      right + transposed_operands() + asked_half(s));
  }
  /// The same without an end: the sums are in tile registers.
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

  /// Scale and mask of (1), the exponential of (2), (3). kPlain: nothing is masked, all refs are
  /// near.
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
        } else {  // rounded before ref is taken away, as max_tile rounds
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

  /// Did ref suit these keys? If not, move it to the maximum and take the exponentials again.
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

  /// maxima [R][lanes]: largest score of each row in this tile and before, NaN left out.
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
