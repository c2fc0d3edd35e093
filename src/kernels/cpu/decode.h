// SPDX-License-Identifier: Apache-2.0
//
// Decode: the forward pass of a few new query rows against one chunk of the keys of their kv head.
// Memory bandwidth is the limit, because each k1, k2 and v is used only a few times. So the kernel
// does not pack them, and all rows that share a kv head use a key while it is in L1. Kv heads that
// are interleaved in memory ([B, N, H, D]) run together, so that reads follow address order:
//
//   for each panel of W keys, for each of these kv heads
//     for each row (4 or 2 at once if all see the whole panel; 3 are padded to 4) and map
//       (1)     s[n] = scale q.k[n] + mask          vector sums along D, then added across lanes
//       (2) (3) ref = max s if max s >= ref + kAbove;  e = exp2(s - ref);  l += sum e
//       (4)     O1 += e1 v,  O2 += e2 v
//
// ref is the approximate row maximum (block.h). With AMX, tile registers compute (1) for four rows
// and two panels if all rows see both panels. Chunks are independent tasks; DecodeJoin rescales
// their partial results to one ref and adds them in order. All sums are fp32.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/decode_part.h"
#include "kernels/cpu/mask.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

/// The next panel to prefetch. When the kernel reads cache line c of row j, it prefetches the line
/// at data + j * row_bytes + c * line_bytes.
struct Ahead {
  const char* data;
  int64_t row_bytes, line_bytes;
};

/// Keys that one call of run_tiles() processes with AMX.
inline constexpr int kTileKeys = 64;
/// Number of operands of transposed q that a task can store for AMX. Four rows of 32 heads fit at
/// D = 64.
inline constexpr int64_t kTurnedOperands = 8192;

template <class Isa, Dtype kType>
struct Decode {
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes, kCols = Isa::kCols;
  static constexpr int kTogether = 4;  // vectors of O that are accumulated at once

  const DecodeGroup& group;
  const int head;
  const ForwardBlock& block = group.heads[head];
  float* const parts = group.parts[head];
  const MapsBlock& maps = block.maps;
  /// Number of rows with padding; a padding row repeats the last row.
  const int padded = DecodePart<Isa>::padded(maps.count);
  const TileMask<Isa> mask{maps};
  const Matrix& v = maps.keys->v_rows;

  /// Resets the partial results of all rows.
  void begin() const {
    for (int i = 0; i < padded; ++i) {
      for (int m = 0; m < 2; ++m) {
        const DecodePart<Isa> part(parts, block.value_dim, i, m);
        part.ref() = -__builtin_inff();
        Isa::store(part.l(), Isa::zero());
        for (int64_t c = 0; c < block.value_dim; c += kLanes) {
          Isa::store(part.o() + c, Isa::zero());
        }
      }
    }
  }

  /// True if AMX tile registers can compute the scores, four rows at a time.
  bool suits_tiles() const {
    return kTiles && padded % 4 == 0 && maps.head_dim % kStep == 0 && maps.head_dim <= kMaxShared;
  }
  /// Returns the number of operands in the transposed q of all rows and both maps.
  int64_t turned_operands() const { return padded / 4 * 2 * maps.head_dim * 2; }
  /// Transposes q, four rows at a time.
  void turn(uint32_t* turned) const {
    if constexpr (kTiles) {
      for (int i = 0; i < maps.count; i += 4) {
        for (int m = 0; m < 2; ++m, turned += maps.head_dim * 2) {
          const void* rows[4];
          for (int r = 0; r < 4; ++r) rows[r] = row(i + r).q[m];
          Isa::DecodeTile::turn(rows, maps.head_dim, turned);
        }
      }
    }
  }
  /// Processes keys [column, column + kTileKeys) with tile registers if all rows see all of them.
  /// Otherwise does nothing and returns false.
  bool run_tiles(int64_t column, const uint32_t* turned) {
    if constexpr (kTiles) {
      for (int i = 0; i < maps.count; ++i) {
        for (int64_t at = column; at < column + kTileKeys; at += kCols) {
          if (mask.bits(maps.rows[i], at) != kAll) return false;
        }
      }
      for (int i = 0; i < maps.count; i += 4) {
        i == 0 ? tile_panels<true>(i, column, turned) : tile_panels<false>(i, column, turned);
        turned += 4 * maps.head_dim;
      }
    }
    return kTiles;
  }
  /// Processes keys [column, column + W). Rows that see all of them share the loads.
  void run(int64_t column) {
    bool ahead = true;  // the first rows prefetch the next panel
    for (int i = 0; i < maps.count;) {
      const int left = padded - i;
      if (left >= 4 && run_rows<4>(i, column, ahead)) {
        i += 4;
      } else if (left >= 2 && run_rows<2>(i, column, ahead)) {
        i += 2;
      } else {
        ahead ? run_panel<true>(i, column) : run_panel<false>(i, column);
        ++i;
      }
      ahead = false;
    }
  }

  const Row& row(int i) const { return maps.rows[i < maps.count ? i : maps.count - 1]; }

  /// True if vdpbf16ps multiplies bf16 pairs, so that k need not be widened to fp32.
  static constexpr bool kDots = kType == Dtype::kBFloat16 && Isa::kPair == 2;
  static constexpr bool kTiles = kDots && requires { typename Isa::DecodeTile; };

 private:
  static constexpr int64_t kSize = kType == Dtype::kFloat32 ? 4 : 2;
  static constexpr uint32_t kAll = static_cast<uint32_t>((uint64_t{1} << kCols) - 1);
  static constexpr int kVectors = kCols / kLanes;
  static constexpr float kAbove = 8.0f;       // ref rises if a score is this far above it (log2)
  static constexpr int64_t kLine = 64;        // bytes of a cache line
  static constexpr int64_t kMaxShared = 256;  // largest head_dim for which rows share loads
  static constexpr int kPair = kDots ? 2 : 1;
  static constexpr int kStep = kPair * kLanes;  // elements of q or k in a vector

  static const char* element(const Matrix& x, int64_t at) {
    return static_cast<const char*>(x.data) + at * kSize;
  }
  /// Returns the next panel to prefetch. If heads are interleaved, the rows of one head are too far
  /// apart for the hardware prefetchers. Each head then prefetches one contiguous part of the next
  /// panel of all heads. A head that is stored by itself prefetches its own rows.
  ///
  /// The kernel reads a panel one column of cache lines at a time. If the next panel has no gaps
  /// between its rows, the kernel prefetches it in address order instead, which also triggers the
  /// hardware prefetchers. Prefetching past the end is harmless.
  Ahead next_panel(const Matrix& mine, const Matrix& first, int64_t column,
                   int64_t columns = kCols) const {
    const Matrix& from = group.interleaved ? first : mine;
    const int64_t stride = group.interleaved ? mine.width : mine.stride;
    const int64_t part = group.interleaved ? head * columns * mine.width : 0;
    const bool gaps = stride != mine.width || mine.width * kSize % kLine != 0;
    return {element(from, (column + columns) * from.stride + part), gaps ? stride * kSize : kLine,
            gaps ? kLine : columns * kLine};
  }
  static void ask(const Ahead& ahead, int j, int64_t c) {
    const int64_t line = c * kSize / kLine;
    __builtin_prefetch(ahead.data + j * ahead.row_bytes + line * ahead.line_bytes, 0, 2);
  }
  /// Loads elements [at, at + kStep) of q or k, with 0 from `at + count` on.
  static Vec load_step(const void* data, int64_t at, int64_t count) {
    if constexpr (kDots) {
      return Isa::load_pairs(data, at, count);
    } else {
      return Isa::load_elements(data, kType, at, count);
    }
  }
  /// Returns sum + x y, lane by lane.
  static Vec add_step(Vec sum, Vec x, Vec y) {
    if constexpr (kDots) {
      return Isa::add_dots(sum, x, y);
    } else {
      return Isa::fma(x, y, sum);
    }
  }
  /// Loads a vector of row column + j, and prefetches.
  template <bool kAhead>
  static Vec load(const Matrix& x, int64_t column, int j, int64_t c, const Ahead& ahead) {
    if constexpr (kAhead) ask(ahead, j, c);
    return Isa::load_elements(x.data, kType, (column + j) * x.stride + c, kLanes);
  }
  static Vec load_tail(const Matrix& x, int64_t n, int64_t c) {
    return Isa::load_elements(x.data, kType, n * x.stride + c, x.width - c);
  }

  /// Processes rows [i, i + 4) and keys [column, column + kTileKeys). `q` holds the transposed q of
  /// these rows for both maps.
  template <bool kAhead>
  void tile_panels(int i, int64_t column, const uint32_t* q) {
    using DecodeTile = typename Isa::DecodeTile;
    alignas(64) float sums[2][kTileKeys * 4];
    float e[2][4][kTileKeys];
    for (int m = 0; m < 2; ++m, q += 2 * maps.head_dim) {
      const Matrix& k = maps.keys->k_rows[m];
      const Ahead ahead = next_panel(k, group.heads[0].maps.keys->k_rows[m], column, kTileKeys);
      for (int first = 0; first < kTileKeys; first += DecodeTile::kKeys) {
        const auto more = [&](int j, int64_t c) {
          if (!kAhead) return;
          for (int n = 0; n < 16; ++n) ask(ahead, first + j + n, c);
        };
        DecodeTile::scores(q, element(k, (column + first) * k.stride), k.stride * kSize, k.width,
                           sums[m] + first * 4, more);
      }
    }
    // Read the scores only after both maps, when the tile stores have reached L1.
    for (int m = 0; m < 2; ++m) DecodeTile::turn_back(sums[m], e[m]);
    for (int m = 0; m < 2; ++m) {
      for (int r = 0; r < 4; ++r) all_exponentials(i + r, m, column, e[m][r]);
    }
    share_values<4, kAhead, kTileKeys>(i, column, e);
  }

  /// Processes rows [i, i + R) together if all of them see the whole panel. Otherwise does nothing
  /// and returns false.
  template <int R>
  bool run_rows(int i, int64_t column, bool ahead) {
    if (maps.head_dim > kMaxShared) return false;
    for (int r = 0; r < R; ++r) {
      if (mask.bits(row(i + r), column) != kAll) return false;
    }
    ahead ? share_panel<R, true>(i, column) : share_panel<R, false>(i, column);
    return true;
  }

  template <int R, bool kAhead>
  void share_panel(int i, int64_t column) {
    float e[2][R][kCols];
    for (int m = 0; m < 2; ++m) {
      share_scores<R, kAhead>(i, m, column, e[m]);
      for (int r = 0; r < R; ++r) all_exponentials(i + r, m, column, e[m][r]);
    }
    share_values<R, kAhead>(i, column, e);
  }

  /// Computes (1) without scale and mask, for R rows x (lanes / R) keys at a time.
  template <int R, bool kAhead>
  void share_scores(int i, int m, int64_t column, float (&out)[R][kCols]) const {
    constexpr int kKeys = kLanes / R;
    const Matrix& k = maps.keys->k_rows[m];
    const int64_t whole = k.width / kStep * kStep, rest = k.width - whole;
    alignas(64) float q[R][kMaxShared];
    for (int r = 0; r < R; ++r) {
      for (int64_t c = 0; c < k.width; c += kStep) {
        Isa::store(q[r] + c / kPair, load_step(row(i + r).q[m], c, k.width - c));
      }
    }
    const Ahead ahead = next_panel(k, group.heads[0].maps.keys->k_rows[m], column);
    for (int h = 0; h < kCols; h += kKeys) {
      Vec sums[kLanes];  // [R][keys]
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) sums[j] = Isa::zero();
      const auto add = [&](int64_t c, int64_t count) {
        Vec x[kKeys];
#pragma GCC unroll 8
        for (int j = 0; j < kKeys; ++j) {
          if constexpr (kAhead) ask(ahead, h + j, c);
          x[j] = load_step(k.data, (column + h + j) * k.stride + c, count);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const Vec y = Isa::load(q[r] + c / kPair);
#pragma GCC unroll 8
          for (int j = 0; j < kKeys; ++j) {
            sums[r * kKeys + j] = add_step(sums[r * kKeys + j], y, x[j]);
          }
        }
      };
      for (int64_t c = 0; c < whole; c += kStep) add(c, kStep);
      if (rest != 0) add(whole, rest);
      float lanes[kLanes];
      Isa::store(lanes, Isa::sums(sums));
      for (int r = 0; r < R; ++r) {
        __builtin_memcpy(out[r] + h, lanes + r * kKeys, kKeys * sizeof(float));
      }
    }
  }

  /// Computes (4) for R rows, two vectors of O at a time.
  template <int R, bool kAhead, int kKeys = kCols>
  void share_values(int i, int64_t column, const float (&e)[2][R][kKeys]) {
    const Ahead ahead = next_panel(v, group.heads[0].maps.keys->v_rows, column, kKeys);
    float* o[2][R];
    for (int m = 0; m < 2; ++m) {
      for (int r = 0; r < R; ++r) o[m][r] = DecodePart<Isa>(parts, block.value_dim, i + r, m).o();
    }
    const auto add = [&]<int kCount>(int64_t c, int64_t count) {
      // Widening bf16 to one vector of even and one of odd columns is cheaper than keeping order.
      constexpr bool kApart = kTiles && kCount == kVectors;
      Vec x[2][R][kCount];
#pragma GCC unroll 16
      for (int u = 0; u < 2 * R * kCount; ++u) {
        x[u / kCount / R][u / kCount % R][u % kCount] =
            Isa::load(o[u / kCount / R][u / kCount % R] + c + u % kCount * kLanes);
      }
      if constexpr (kApart) {
        for (int k = 0; k < 2 * R; ++k) Isa::split_even_odd(x[k / R][k % R]);
      }
      int64_t at = column * v.stride + c;
      for (int j = 0; j < kKeys; ++j, at += v.stride) {
        Vec row[kCount];
        if constexpr (kApart) {
          if constexpr (kAhead) ask(ahead, j, c);
          Isa::load_even_odd(v.data, at, row);
        } else {
#pragma GCC unroll 2
          for (int u = 0; u < kCount; ++u) {
            if constexpr (kAhead) ask(ahead, j, c + u * kLanes);
            row[u] = Isa::load_elements(v.data, kType, at + u * kLanes, count);
          }
        }
#pragma GCC unroll 8
        for (int k = 0; k < 2 * R; ++k) {
          const Vec weight = Isa::set1(e[k / R][k % R][j]);
#pragma GCC unroll 2
          for (int u = 0; u < kCount; ++u) {
            x[k / R][k % R][u] = Isa::fma(weight, row[u], x[k / R][k % R][u]);
          }
        }
      }
      if constexpr (kApart) {
        for (int k = 0; k < 2 * R; ++k) Isa::join_even_odd(x[k / R][k % R]);
      }
#pragma GCC unroll 16
      for (int u = 0; u < 2 * R * kCount; ++u) {
        Isa::store(o[u / kCount / R][u / kCount % R] + c + u % kCount * kLanes,
                   x[u / kCount / R][u / kCount % R][u % kCount]);
      }
    };
    int64_t c = 0;
    for (; c + kVectors * kLanes <= v.width; c += kVectors * kLanes) {
      add.template operator()<kVectors>(c, kLanes);
    }
    for (; c < v.width; c += kLanes) {
      add.template operator()<1>(c, v.width - c < kLanes ? v.width - c : kLanes);
    }
  }

  template <bool kAhead>
  void run_panel(int i, int64_t column) {
    const uint32_t bits = mask.bits(maps.rows[i], column);
    if (bits == 0) return;
    float e[2][kCols];
    float bias[kCols];
    const bool biased = maps.mask_kind == MaskKind::kAdditive;
    if (biased) mask.bias(maps.rows[i], column, bias);
    for (int m = 0; m < 2; ++m) {
      const Ahead ahead =
          next_panel(maps.keys->k_rows[m], group.heads[0].maps.keys->k_rows[m], column);
      for (int h = 0; h < kCols; h += kLanes) {
        if (bits == kAll) {
          scores<kAhead>(i, m, column, h, ahead, e[m] + h);
        } else {
          some_scores(i, m, column + h, bits >> h, e[m] + h);
        }
      }
      exponentials(i, m, bits, biased ? bias : nullptr, e[m]);
    }
    add_values<kAhead>(i, column, bits, e);
  }

  /// Computes (1) without scale and mask, for the `kLanes` keys from key h of the panel on.
  template <bool kAhead>
  void scores(int i, int m, int64_t column, int h, const Ahead& ahead, float* out) const {
    const Matrix& k = maps.keys->k_rows[m];
    const void* q = maps.rows[i].q[m];
    Vec sums[kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) sums[j] = Isa::zero();
    int64_t c = 0;
    for (; c + kStep <= k.width; c += kStep) {
      const Vec x = load_step(q, c, kStep);
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) {
        if constexpr (kAhead) ask(ahead, h + j, c);
        sums[j] = add_step(sums[j], x, load_step(k.data, (column + h + j) * k.stride + c, kStep));
      }
    }
    if (c < k.width) {
      const int64_t count = k.width - c;
      const Vec x = load_step(q, c, count);
      for (int j = 0; j < kLanes; ++j) {
        sums[j] = add_step(sums[j], x, load_step(k.data, (column + h + j) * k.stride + c, count));
      }
    }
    Isa::store(out, Isa::sums(sums));
  }

  /// Computes (1) for a row that sees only some of the keys. Does not read hidden keys; their
  /// scores become 0.
  void some_scores(int i, int m, int64_t column, uint32_t bits, float* out) const {
    const Matrix& k = maps.keys->k_rows[m];
    Vec sums[kLanes];
    for (int j = 0; j < kLanes; ++j) {
      sums[j] = Isa::zero();
      if ((bits >> j & 1u) == 0) continue;
      for (int64_t c = 0; c < k.width; c += kStep) {
        const int64_t count = k.width - c;
        sums[j] = add_step(sums[j], load_step(maps.rows[i].q[m], c, count),
                           load_step(k.data, (column + j) * k.stride + c, count));
      }
    }
    Isa::store(out, Isa::sums(sums));
  }

  /// Computes (2) (3) for a row that sees all keys [column, column + kKeys). A padding row gets
  /// e = 0.
  template <int kKeys>
  void all_exponentials(int i, int m, int64_t column, float (&e)[kKeys]) {
    if (i >= maps.count) {
      for (int n = 0; n < kKeys; n += kLanes) Isa::store(e + n, Isa::zero());
      return;
    }
    float bias[kKeys];
    const bool biased = maps.mask_kind == MaskKind::kAdditive;
    for (int n = 0; biased && n < kKeys; n += kCols) mask.bias(row(i), column + n, bias + n);
    exponentials<kKeys>(i, m, ~uint64_t{0}, biased ? bias : nullptr, e);
  }

  /// Computes (2) (3): replaces the scores by exponentials. All keys of one call share one ref,
  /// because (4) adds their values together. ref changes only if a score exceeds it by kAbove:
  /// exponentials up to 2^kAbove are as accurate as those below 1.
  template <int kKeys = kCols>
  void exponentials(int i, int m, uint64_t seen, const float* biases, float* e) {
    constexpr int kCount = kKeys / kLanes;
    const DecodePart<Isa> part(parts, block.value_dim, i, m);
    const Vec scale = Isa::set1(maps.scale[m]), unseen = Isa::set1(-__builtin_inff());
    const auto bits = [&](int h) { return static_cast<uint32_t>(seen >> (h * kLanes)); };
    Vec x[kCount];
    Vec ref = Isa::set1(part.ref());
    bool near = true;
#pragma GCC unroll 4
    for (int h = 0; h < kCount; ++h) {
      const Vec bias = biases == nullptr ? Isa::zero() : Isa::load(biases + h * kLanes);
      const Vec score = Isa::fma(Isa::load(e + h * kLanes), scale, bias);
      x[h] = Isa::select(bits(h), score, unseen);
      near &= Isa::all_below(Isa::sub(x[h], ref), kAbove);
    }
    if (!near) ref = move_ref(part, x);
    Vec sum = Isa::load(part.l());
#pragma GCC unroll 4
    for (int h = 0; h < kCount; ++h) {
      const Vec y = Isa::select(bits(h), Isa::exp2(Isa::sub(x[h], ref)), Isa::zero());
      Isa::store(e + h * kLanes, y);
      sum = Isa::add(sum, y);
    }
    Isa::store(part.l(), sum);
  }

  /// Raises ref to the largest of the scores x and rescales O and l of earlier panels. Returns the
  /// ref that the exponentials of x subtract.
  template <int kCount>
  [[gnu::noinline]] Vec move_ref(const DecodePart<Isa>& part, const Vec (&x)[kCount]) {
    Vec most = Isa::set1(-__builtin_inff());
    for (const Vec& scores : x) most = Isa::max(scores, most);
    const float maximum = Isa::maximum(most);
    if (maximum > part.ref()) {
      const Vec shrink = Isa::set1(__builtin_exp2f(part.ref() - maximum));  // 0 if ref is -inf
      part.ref() = maximum;
      Isa::store(part.l(), Isa::mul(Isa::load(part.l()), shrink));
      for (int64_t c = 0; c < block.value_dim; c += kLanes) {
        Isa::store(part.o() + c, Isa::mul(Isa::load(part.o() + c), shrink));
      }
    }
    // ref is still -inf if all scores so far are NaN. Any finite ref then gives NaN, as it should.
    return Isa::set1(part.ref() == -__builtin_inff() ? 0.0f : part.ref());
  }

  /// Computes (4) over the keys that the row sees.
  template <bool kAhead>
  void add_values(int i, int64_t column, uint32_t bits, const float (&e)[2][kCols]) {
    float* o1 = DecodePart<Isa>(parts, block.value_dim, i, 0).o();
    float* o2 = DecodePart<Isa>(parts, block.value_dim, i, 1).o();
    const Ahead ahead = next_panel(v, group.heads[0].maps.keys->v_rows, column);
    int64_t c = 0;
    for (; c + kTogether * kLanes <= v.width; c += kTogether * kLanes) {
      Vec x1[kTogether], x2[kTogether];
      for (int u = 0; u < kTogether; ++u) {
        x1[u] = Isa::load(o1 + c + u * kLanes);
        x2[u] = Isa::load(o2 + c + u * kLanes);
      }
      for (uint32_t left = bits; left != 0; left &= left - 1) {
        const int j = __builtin_ctz(left);
        const Vec e1 = Isa::set1(e[0][j]), e2 = Isa::set1(e[1][j]);
#pragma GCC unroll 4
        for (int u = 0; u < kTogether; ++u) {
          const Vec row = load<kAhead>(v, column, j, c + u * kLanes, ahead);
          x1[u] = Isa::fma(e1, row, x1[u]);
          x2[u] = Isa::fma(e2, row, x2[u]);
        }
      }
      for (int u = 0; u < kTogether; ++u) {
        Isa::store(o1 + c + u * kLanes, x1[u]);
        Isa::store(o2 + c + u * kLanes, x2[u]);
      }
    }
    for (; c < v.width; c += kLanes) {
      Vec x1 = Isa::load(o1 + c), x2 = Isa::load(o2 + c);
      for (uint32_t left = bits; left != 0; left &= left - 1) {
        const int j = __builtin_ctz(left);
        const Vec row = load_tail(v, column + j, c);
        x1 = Isa::fma(Isa::set1(e[0][j]), row, x1);
        x2 = Isa::fma(Isa::set1(e[1][j]), row, x2);
      }
      Isa::store(o1 + c, x1);
      Isa::store(o2 + c, x2);
    }
  }
};

/// Transposed q of the heads of a group, for AMX. Heads beyond the capacity share the last slot,
/// and of() transposes their q again at each call. They must not fall back to vector code, because
/// a head's result must not depend on the number of heads.
template <class Head>
struct TurnedRows {
  alignas(64) uint32_t operands[Head::kTiles ? kTurnedOperands : 1];
  int64_t slots = 0;

  explicit TurnedRows(const DecodeGroup& group) {
    for (int h = 0; h < group.count; ++h) {
      const Head head{group, h};
      if (!head.suits_tiles()) continue;
      slots = kTurnedOperands / head.turned_operands();
      if (h < slots) head.turn(slot(head));
    }
  }
  const uint32_t* of(const Head& head) {
    if (head.group.count > slots && head.head >= slots - 1) head.turn(slot(head));
    return slot(head);
  }

 private:
  uint32_t* slot(const Head& head) {
    const int64_t index = head.head < slots ? head.head : slots - 1;
    return operands + index * head.turned_operands();
  }
};

/// Computes the partial results of all heads of the group over keys [first, end). `first` is a
/// multiple of W, and of kTileKeys where an earlier call ended.
template <class Isa, Dtype kType>
void run_decode_of_type(const DecodeGroup& group, int64_t first, int64_t end) {
  using Head = Decode<Isa, kType>;
  [[maybe_unused]] const typename Isa::DecodeSession session{};
  // Heads prefetch for each other, so all heads finish one panel before any starts the next.
  const bool tiles = Head{group, 0}.suits_tiles();
  const int64_t step = tiles ? kTileKeys : Isa::kCols;
  TurnedRows<Head> turned(group);
  for (int h = 0; h < group.count && !group.resumes; ++h) Head{group, h}.begin();
  for (int64_t column = first; column < end; column += step) {
    const int64_t next = column + step < end ? column + step : end;
    for (int h = 0; h < group.count; ++h) {
      Head head{group, h};
      const bool whole = tiles && next - column == kTileKeys && head.suits_tiles();
      if (whole && head.run_tiles(column, turned.of(head))) continue;
      for (int64_t at = column; at < next; at += Isa::kCols) head.run(at);
    }
  }
}

/// Dispatches on the element type.
template <class Isa>
void run_decode(const DecodeGroup* group, int64_t first, int64_t end) {
  switch (group->heads[0].maps.dtype) {
    case Dtype::kFloat32: return run_decode_of_type<Isa, Dtype::kFloat32>(*group, first, end);
    case Dtype::kBFloat16: return run_decode_of_type<Isa, Dtype::kBFloat16>(*group, first, end);
    case Dtype::kFloat16: return run_decode_of_type<Isa, Dtype::kFloat16>(*group, first, end);
    case Dtype::kFloat64: return;  // only the reference takes float64
  }
}

}  // namespace diffattn::cpu
