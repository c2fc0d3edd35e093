// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The products and the softmax of the float64 kernels, on blocks of kBlockRows query rows. A map
/// of a block is [panels][kBlockRows][kLanes]: a panel is kLanes adjacent keys. Each function
/// exists once per instruction set (each_isa.h).
namespace diffattn::cpu::float64 {

inline constexpr int kLanes = 8;       // one AVX-512 register, or two of AVX2
inline constexpr int kStrip = 6;       // rows of a tile: 12 sums of 16 registers with AVX2
inline constexpr int kBlockRows = 24;  // dk and dv are read and written once per block

inline int64_t padded(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

/// The panels [first, end) of a block's maps.
struct PanelRange {
  int64_t first, end;
};

/// Computes map = factor a b: a [kBlockRows / kStrip][depth][kStrip], b [panels][depth][kLanes].
void multiply_panels(PanelRange panels, const double* a, const double* b, int64_t depth,
                     double factor, double* map);

/// Computes sums += map x: x [keys][stride], sums [kBlockRows][stride]; stride is a multiple of
/// kLanes.
void add_row_sums(PanelRange panels, const double* map, const double* x, int64_t stride,
                  double* sums);

/// Computes sums += map^T x: x [kBlockRows][stride], sums [keys][stride].
void add_key_sums(PanelRange panels, const double* map, const double* x, int64_t stride,
                  double* sums);

/// Turns the scores of row i into probabilities; hidden entries must be -inf. Returns log sum exp.
double softmax_row(PanelRange panels, int i, double* map);

/// Computes a = p1 - lambda p2 for all rows. lambda: [kBlockRows].
void subtract_maps(PanelRange panels, const double* p1, const double* p2, const double* lambda,
                   double* a);

/// Step (8) for row i: da becomes A, p1 becomes ds1 and p2 becomes ds2. Returns sum p2 da, which is
/// -dlambda.
double differentiate_row(PanelRange panels, int i, double lambda, double* p1, double* p2,
                         double* da);

/// Step (8) for row i of one of the heads that share map 2: da becomes A and p1 becomes ds1. Adds
/// lambda da to `shared`, or sets it for the first head. Returns sum p2 da, which is -dlambda.
double differentiate_shared_row(PanelRange panels, int i, double lambda, bool first, double* p1,
                                const double* p2, double* da, double* shared);

/// Step (8) for row i of map 2 of those heads: p2 becomes ds2, given the sum of lambda da.
void differentiate_noise_row(PanelRange panels, int i, double* p2, const double* shared);

/// True if no number is infinite or NaN.
bool all_finite(const double* x, int64_t count);

}  // namespace diffattn::cpu::float64
