// SPDX-License-Identifier: Apache-2.0
//
// The query rows of a backward block: q and dO as operands, step (6), dmask, and odd rows.
//
//   (4) O = A v                                           if needed and not saved
//   (6) g = gain * dout,  dO = rstd (g - O rstd^2 mean(g * O)),  dgain += dout * O * rstd
//   (9) dmask += ds1 + ds2                                row by row
//
// Shapes: q [rows][D], dO and O [rows][Dv], in fp32; operands are fp32 or bf16 pairs; dgain is
// summed in double.
//
// An odd row holds a NaN or an infinity. In a product over a whole tile, 0 * NaN would spoil sums
// of rows that do not see it. So the operands hold zeros for odd rows of q, dO and k, and the code
// here adds odd rows of dO and k only where they are visible. An odd q needs no such addition: its
// ds is NaN at every visible entry, and NaN * 0 already makes dk NaN.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/gradient_operands.h"
#include "kernels/cpu/maps.h"
#include "kernels/cpu/value_product.h"

namespace diffattn::cpu {

/// q or dO of a block as an operand of the products that sum over query rows: ds^T q and A^T dO. It
/// is the right operand [rows / pair][stride]. With Gradients::kTurned (AMX), it is the left
/// operand, transposed to [columns][kTurnedStride].
template <class Isa>
struct SummedRows {
  using Operand = typename Isa::Operand;
  static constexpr bool kTurned = Isa::Gradients::kTurned;
  /// An odd number of cache lines, like kMapStride.
  static constexpr int64_t kTurnedStride = kMaxBlockRows / Isa::kPair + 16;
  int64_t panels;  // of W columns
  int64_t stride;
  Operand* data;
  Operand* turned;

  void carve(int rows, int64_t width, Carver<Isa>& carver) {
    panels = (width + Isa::kCols - 1) / Isa::kCols;
    stride = panels * Isa::kCols + 16;
    data = carver.template take<Operand>(rows / Isa::kPair * stride);
    turned = carver.template take<Operand>(kTurned ? panels * Isa::kCols * kTurnedStride : 0);
  }
  /// Sets columns [c, c + lanes) of rows r and r + 1 to x0 and x1. r is even.
  void set(int r, int64_t c, typename Isa::Vec x0, typename Isa::Vec x1) {
    if constexpr (Isa::kPair == 1) {
      Isa::store(data + r * stride + c, x0);
      Isa::store(data + (r + 1) * stride + c, x1);
    } else {
      Isa::store_row_pair(data + r / 2 * stride + c, x0, x1);
    }
  }
  /// Transposes the rows if kTurned. Call it after set() of all rows.
  void finish(int rows) {
    if constexpr (kTurned) {
      for (int r = 0; r < rows / Isa::kPair; r += Isa::kLanes) {
        for (int64_t c = 0; c < panels * Isa::kCols; c += Isa::kLanes) {
          typename Isa::Vec x[Isa::kLanes];
          for (int i = 0; i < Isa::kLanes; ++i) {
            x[i] = Isa::load(reinterpret_cast<const float*>(data + (r + i) * stride + c));
          }
          Isa::transpose(x);
          for (int i = 0; i < Isa::kLanes; ++i) {
            Isa::store(reinterpret_cast<float*>(turned + (c + i) * kTurnedStride + r), x[i]);
          }
        }
      }
    }
  }
  /// Returns the address of row r and column c in the operand.
  const Operand* at(int r, int64_t c) const {
    return kTurned ? turned + c * kTurnedStride + r / Isa::kPair
                   : data + r / Isa::kPair * stride + c;
  }
  int64_t operand_stride() const { return kTurned ? kTurnedStride : stride; }
};

/// Returns the offset of row n, column c in dk or dv, which are stored in tiles (BackwardBlock).
template <class Isa>
constexpr int64_t sum_entry(int64_t column_panels, int64_t n, int64_t c) {
  constexpr int kRows = Isa::kRows, kCols = Isa::kCols;
  const int64_t tile = n / kRows * column_panels + c / kCols;
  const int64_t entry =
      Isa::Gradients::kTurned ? c % kCols * kRows + n % kRows : n % kRows * kCols + c % kCols;
  return tile * kRows * kCols + entry;
}

/// Sets x to A, ds1 and ds2 (in the order of GradientMatrix) of row r and column j of a panel. ds2
/// is 0 before the last of the heads that share map 2.
template <class Isa, class Source>
void entry_gradients(const Source& source, const Maps<Isa>& maps, int64_t panel, int r, int j,
                     float (&x)[kGradientMatrices]) {
  const int first = j / Isa::kLanes * Isa::kLanes;
  const auto values = source.of_entry(r, (panel * maps.rows + r) * Isa::kCols + first);
  float lanes[Isa::kLanes];
  const typename Isa::Vec all[kGradientMatrices] = {values.a, values.ds1, values.ds2};
  for (int m = 0; m < kGradientMatrices; ++m) {
    Isa::store(lanes, all[m]);
    x[m] = lanes[j - first];
  }
}

template <class Isa>
struct BackwardRows {
  using Vec = typename Isa::Vec;
  static constexpr int kRows = Isa::kRows, kCols = Isa::kCols, kLanes = Isa::kLanes;

  const BackwardBlock& block;
  const Maps<Isa>& maps;
  ValueProduct<Isa>& product;
  const int64_t q_stride = (block.maps.head_dim + kCols - 1) / kCols * kCols + 16;

  // Scratch.
  SummedRows<Isa> q[2], dout;          // q and dO with zeros for odd rows
  float* true_dout;                    // [rows][acc_stride]: dO including odd rows
  uint16_t* low_dout;                  // [rows][acc_stride]: dO in bf16, if operands are pairs
  typename Isa::Operand* dout_packed;  // [strips]: dO packed for dO v^T
  float* o;                            // [rows][acc_stride]: O
  float* norm[2];                      // [rows]: 1 / l1, lambda / l2
  uint8_t* odd;                        // [rows]: 1 if dO is odd
  float* terms;                        // [lanes]: one vector of terms of dgain

  BackwardRows(const BackwardBlock& in, const Maps<Isa>& of, ValueProduct<Isa>& with,
               Carver<Isa>& carver)
      : block(in), maps(of), product(with) {
    for (int m = 0; m < 2; ++m) {
      q[m].carve(maps.rows, block.maps.head_dim, carver);
      norm[m] = carver.template take<float>(maps.rows);
    }
    dout.carve(maps.rows, block.value_dim, carver);
    low_dout = carver.template take<uint16_t>(Isa::kPair == 1 ? 0 : product.acc_floats());
    true_dout = carver.template take<float>(product.acc_floats());
    o = carver.template take<float>(product.acc_floats());
    dout_packed = carver.template take<typename Isa::Operand>(
        maps.strips * Isa::Pack::strip_operands(block.value_dim) + kLanes);
    odd = carver.template take<uint8_t>(maps.rows);
    terms = carver.template take<float>(kLanes);
  }

  /// Returns row i of the current head.
  const BackwardRow& row(int i) const { return block.rows[maps.index(i)]; }

  /// True if prepare() needs the maps, to compute O or to find rows whose mask hides all keys.
  bool needs_maps() const {
    return (uses_o() && block.rows[0].o == nullptr) || block.maps.mask_kind != MaskKind::kNone;
  }

  /// Computes (4) and (6) of the current head and prepares its operands.
  void prepare() {
    maps.set_norm(norm);
    for (int m = 0; m < maps.fresh; ++m) {
      for (int i = 0; i < maps.rows; i += 2) load_q(m, i);
      q[m].finish(maps.rows);
    }
    if (uses_o()) load_o();
    for (int i = 0; i < maps.rows; ++i) load_dout(i);
    for (int i = 0; i < maps.rows; i += 2) {
      for (int64_t c = 0; c < product.column_panels * kCols; c += kLanes) {
        dout.set(i, c, finite_dout(i, c), finite_dout(i + 1, c));
      }
    }
    dout.finish(maps.rows);
    for (int s = 0; s < maps.strips; ++s) pack_dout(s);
  }

  /// Computes (9): dmask += ds1 + ds2.
  template <class Source>
  void add_dmask(const Source& gradients, int64_t first, int64_t last) const {
    for (int i = 0; i < block.maps.count; ++i) {
      float* out = row(i).dmask;
      if (out == nullptr) continue;
      for_each_seen(i, first, last, [&](int64_t p, int j) {
        float x[kGradientMatrices];
        entry_gradients<Isa>(gradients, maps, p, i, j, x);
        out[((maps.origin + p) * kCols + j) * block.dmask_stride] += x[kDs1] + x[kDs2];
      });
    }
  }

  /// Adds A dO to dv for odd rows of dO.
  template <class Source>
  void add_odd_dout(const Source& gradients, int64_t first, int64_t last) const {
    for (int i = 0; i < block.maps.count; ++i) {
      if (odd[i] == 0) continue;
      for_each_seen(i, first, last, [&](int64_t p, int j) {
        const int64_t n = (maps.origin + p) * kCols + j;
        float x[kGradientMatrices];
        entry_gradients<Isa>(gradients, maps, p, i, j, x);
        for (int64_t c = 0; c < block.value_dim; ++c) {
          const float dv = x[kA] * true_dout[i * product.acc_stride + c];
          block.dv[sum_entry<Isa>(dout.panels, n, c)] += dv;
        }
      });
    }
  }

  /// Adds ds k to dq for odd rows of k, for the first `count` maps.
  template <class Source>
  void add_odd_keys(const Source& gradients, int count, float* const dq[2], int64_t first,
                    int64_t last) const {
    for (int m = 0; m < count; ++m) {
      const Matrix& k = block.maps.keys->k_rows[m];
      for (int64_t p = first; p < last; ++p) {
        const uint32_t bits = block.maps.keys->odd_k[m][maps.origin + p];
        for (int j = 0; j < kCols; ++j) {
          if ((bits >> j & 1u) == 0) continue;
          const int64_t from = ((maps.origin + p) * kCols + j) * k.stride;
          for (int i = 0; i < block.maps.count; ++i) {
            if (!maps.sees(p, i, j)) continue;
            float x[kGradientMatrices];
            entry_gradients<Isa>(gradients, maps, p, i, j, x);
            for (int64_t c = 0; c < k.width; c += kLanes) {
              float* out = dq[m] + i * q_stride + c;
              const Vec row = Isa::load_elements(k.data, k.dtype, from + c, k.width - c);
              Isa::store(out, Isa::fma(Isa::set1(x[kDs1 + m]), row, Isa::load(out)));
            }
          }
        }
      }
    }
  }

 private:
  bool uses_o() const { return block.epilogue.norm || block.dgain != nullptr; }

  /// Copies a row as floats, padded with zeros to `padded`. Returns false if the row is odd.
  static bool copy(const void* from, Dtype dtype, int64_t width, int64_t padded, float* to) {
    Vec check = Isa::zero();
    for (int64_t c = 0; c < padded; c += kLanes) {
      const Vec x = from != nullptr && c < width ? Isa::load_elements(from, dtype, c, width - c)
                                                 : Isa::zero();
      check = Isa::fma(x, Isa::zero(), check);
      Isa::store(to + c, x);
    }
    return Isa::sum(check) == 0.0f;
  }

  /// Calls body(panel, column) for every entry of panels [first, last) that row i sees.
  template <class Body>
  void for_each_seen(int i, int64_t first, int64_t last, const Body& body) const {
    for (int64_t p = first; p < last; ++p) {
      for (int j = 0; j < kCols; ++j) {
        if (maps.sees(p, i, j)) body(p, j);
      }
    }
  }

  /// Loads rows i and i + 1 of q, with zeros for odd rows.
  void load_q(int m, int i) {
    const int64_t width = block.maps.head_dim, padded = q[m].panels * kCols;
    const void* rows[2];
    for (int k = 0; k < 2; ++k) {
      rows[k] = i + k < block.maps.count ? maps.row(i + k).q[m] : nullptr;
      Vec check = Isa::zero();
      for (int64_t c = 0; rows[k] != nullptr && c < width; c += kLanes) {
        const Vec x = Isa::load_elements(rows[k], block.maps.dtype, c, width - c);
        check = Isa::fma(x, Isa::zero(), check);
      }
      if (Isa::sum(check) != 0.0f) rows[k] = nullptr;
    }
    const auto load = [&](const void* row, int64_t c) {
      return row == nullptr || c >= width ? Isa::zero()
                                          : Isa::load_elements(row, block.maps.dtype, c, width - c);
    };
    for (int64_t c = 0; c < padded; c += kLanes) q[m].set(i, c, load(rows[0], c), load(rows[1], c));
  }

  Vec finite_dout(int i, int64_t c) const {
    return odd[i] != 0 ? Isa::zero() : Isa::load(true_dout + i * product.acc_stride + c);
  }

  void pack_dout(int s) {
    const int64_t stride = product.acc_stride, width = block.value_dim;
    const void* pointers[kRows];
    for (int i = 0; i < kRows; ++i) {
      const int r = s * kRows + i;
      pointers[i] = true_dout + r * stride;
      if constexpr (Isa::kPair == 2) {
        for (int64_t c = 0; c < width; c += kLanes) {
          Isa::store_elements(low_dout + r * stride, Dtype::kBFloat16, c, kLanes,
                              Isa::load(true_dout + r * stride + c));
        }
        pointers[i] = low_dout + r * stride;
      }
    }
    Isa::Pack::strip(pointers, Dtype::kFloat32, width,
                     dout_packed + s * Isa::Pack::strip_operands(width));
  }

  void load_o() {
    const bool saved = block.rows[0].o != nullptr;
    for (int i = 0; i < maps.rows; ++i) {
      float* to = o + i * product.acc_stride;
      const void* from = saved && i < block.maps.count ? row(i).o : nullptr;
      copy(from, block.maps.dtype, block.value_dim, product.acc_stride, to);
    }
    if (!saved) product.template add<Weights::kDifference>(norm, o);  // (4)
  }

  /// Computes (6) for row i.
  void load_dout(int i) {
    const int64_t width = block.value_dim, padded = product.column_panels * kCols;
    float* to = true_dout + i * product.acc_stride;
    const bool sees = needs_maps() ? maps.softmax[0].seen(i) : maps.row(i).begin < maps.row(i).end;
    const bool used = i < block.maps.count && sees;
    copy(used ? row(i).dout : nullptr, block.maps.dtype, width, padded, to);
    const float* row_o = o + i * product.acc_stride;
    const float rstd = used ? row_rstd<Isa>(block.epilogue, row_o, width) : 0.0f;
    Vec inner = Isa::zero();  // sum of gain * dout * O
    for (int64_t c = 0; used && c < width; c += kLanes) {
      const Vec gain = Isa::load_elements(block.epilogue.gain, Dtype::kFloat32, c, width - c);
      if (block.dgain != nullptr) add_dgain(c, to, row_o, rstd);
      const Vec g = Isa::mul(Isa::load(to + c), gain);
      Isa::store(to + c, g);
      if (block.epilogue.norm) inner = Isa::fma(g, Isa::load(row_o + c), inner);
    }
    if (block.epilogue.norm && used) {
      const float mean = Isa::sum(inner) / static_cast<float>(width);
      const Vec r = Isa::set1(rstd), back = Isa::set1(rstd * rstd * mean);
      for (int64_t c = 0; c < width; c += kLanes) {
        const Vec x = Isa::sub(Isa::load(to + c), Isa::mul(Isa::load(row_o + c), back));
        Isa::store(to + c, Isa::mul(r, x));
      }
    }
    odd[i] = !copy(to, Dtype::kFloat32, padded, padded, to);
  }

  void add_dgain(int64_t c, const float* dout_row, const float* row_o, float rstd) {
    // `terms` is not on the stack: g++ 13 with AddressSanitizer would align it to 32 B, not 64 B.
    Isa::store(terms,
               Isa::mul(Isa::mul(Isa::load(dout_row + c), Isa::load(row_o + c)), Isa::set1(rstd)));
    const int64_t count = block.value_dim - c < kLanes ? block.value_dim - c : kLanes;
    for (int64_t j = 0; j < count; ++j) block.dgain[c + j] += static_cast<double>(terms[j]);
  }
};

}  // namespace diffattn::cpu
