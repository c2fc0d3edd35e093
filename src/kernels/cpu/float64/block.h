// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/params.h"
#include "kernels/cpu/float64/products.h"
#include "kernels/cpu/scratch.h"
#include "kernels/visible.h"

namespace diffattn::cpu::float64 {

/// One kv head of one sequence, packed and padded with zeros. Rows that hold an infinity or a NaN
/// (odd rows) are zero in k and v, since 0 * NaN would carry a NaN to rows that do not see them.
/// RowBlock::add_odd_keys adds them to those that do.
struct PackedHead {
  int64_t b = 0, kv_head = 0;
  Sequence seq = {};
  int64_t panels = 0;
  double* kt[2] = {};        // [panels][D][kLanes]
  double* k[2] = {};         // backward: [panels * kLanes][padded(D)]
  double* v = nullptr;       // [panels * kLanes][padded(Dv)]
  double* vt = nullptr;      // backward: [panels][Dv][kLanes]
  uint8_t* odd_k[2] = {};    // backward: [panels]: a bit per odd row
  uint8_t* odd_v = nullptr;  // [panels]
};

/// Places the arrays of a packed head in memory.
PackedHead place_head(const Problem& problem, int64_t b, int64_t kv_head, bool backward,
                      Carver<double>& carver);

/// Packs one panel of k1, k2 and v.
void pack_panel(const Problem& problem, const View<const void>& v, const PackedHead& head,
                int64_t panel);

/// Both maps of up to kBlockRows rows of one head. Heads that share map 2 compute their blocks one
/// after the other.
struct RowBlock {
  const Problem& problem;

  // Scratch.
  double* q[2];         // [kBlockRows / kStrip][D][kStrip]
  double* q_rows[2];    // backward: [kBlockRows][padded(D)], odd rows 0
  double* p[2];         // [panels][kBlockRows][kLanes]
  double* third;        // like p: A in the forward, dA and then A in the backward
  uint8_t* seen;        // [panels][kBlockRows]: a bit per visible key
  uint8_t* has_hidden;  // [panels]: 1 if a row does not see all keys of the panel

  // The rows computed last. `panels` holds the keys that any of them sees.
  int count = 0;
  int fresh = 2;  // maps that compute() computed: 1 if an earlier head did map 2
  PanelRange panels{0, 0};
  double lambda[kBlockRows], lse[2][kBlockRows];
  bool sees_any[kBlockRows];
  uint32_t odd_q[2] = {};  // backward: a bit per odd row

  RowBlock(const Problem& problem, int64_t most_panels, bool backward, Carver<double>& carver);

  /// Computes p1, p2 and lse of rows [m, m + kBlockRows) of head h. The first of the heads that
  /// share map 2 computes p2; the others keep it.
  void compute(const PackedHead& head, int64_t h, int64_t m);
  /// Sets the hidden entries of a map to `value`.
  void fill_hidden(double* map, double value) const;
  /// Completes add_row_sums: adds the odd rows of x, of `width` numbers, to the rows that see them.
  void add_odd_keys(const PackedHead& head, const double* map, const uint8_t* odd,
                    const View<const void>& x, int64_t width, double* sums) const;
  /// Completes add_key_sums: adds the odd rows of x to the sums of the keys that they see.
  void add_odd_rows(const double* map, uint32_t odd, const double* const* x, int64_t width,
                    double* sums) const;

 private:
  void pack_queries(const PackedHead& head, int64_t h, int64_t m);
  void find_visible(const PackedHead& head, int64_t h, int64_t m);
  void add_biases(const PackedHead& head, int64_t h, int64_t m);
};

/// Packs rows x[i] [width], i < count, as strips [kBlockRows / kStrip][width][kStrip], with zeros
/// for the other rows.
void pack_strips(const double* const* x, int count, int64_t width, double* strips);

}  // namespace diffattn::cpu::float64
