// SPDX-License-Identifier: Apache-2.0
//
// Step (5) of docs/algorithm.md for one row O [Dv], elementwise and in fp32:
//
//   out = gain * O * rstd,   gain = out_scale * weight,   rstd = 1 / sqrt(mean(O^2) + eps)
//
// Without head norm, weight and rstd are 1. Results are rounded once, when they are stored.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"

namespace diffattn::cpu {

/// Returns rstd, or 1 without head norm. o [Dv] is padded with zeros to a whole vector. Returns 0
/// if O = 0 and eps = 0.
template <class Isa>
float row_rstd(const EpilogueBlock& epilogue, const float* o, int64_t width) {
  if (!epilogue.norm) return 1.0f;
  typename Isa::Vec squares = Isa::zero();
  for (int64_t c = 0; c < width; c += Isa::kLanes) {
    const typename Isa::Vec x = Isa::load(o + c);
    squares = Isa::fma(x, x, squares);
  }
  const float mean = Isa::sum(squares) / static_cast<float>(width) + epilogue.eps;
  return mean == 0.0f ? 0.0f : 1.0f / __builtin_sqrtf(mean);
}

/// Computes out of row i and stores all its outputs, given O and O2 = softmax2 v (read only if o2
/// is wanted). A row that sees nothing gets 0, whatever lambda and the norm weight are.
template <class Isa>
void store_row(const ForwardBlock& block, int i, bool seen, const float (&lse)[2], const float* o,
               const float* o2) {
  using Vec = typename Isa::Vec;
  const ForwardRow& to = block.rows[i];
  const int64_t width = block.value_dim;
  for (int m = 0; m < 2; ++m) {
    if (to.lse[m] != nullptr) *to.lse[m] = seen ? lse[m] : -__builtin_inff();
  }
  const auto store = [&](void* data, int64_t c, Vec x) {
    Isa::store_elements(data, block.maps.dtype, c, width - c, seen ? x : Isa::zero());
  };
  const Vec rstd = Isa::set1(row_rstd<Isa>(block.epilogue, o, width));
  for (int64_t c = 0; c < width; c += Isa::kLanes) {
    const Vec x = Isa::load(o + c);
    const Vec gain = Isa::load_elements(block.epilogue.gain, Dtype::kFloat32, c, width - c);
    if (to.o != nullptr) store(to.o, c, x);
    if (to.o2 != nullptr) store(to.o2, c, Isa::load(o2 + c));
    store(to.out, c, Isa::mul(Isa::mul(x, rstd), gain));
  }
}

}  // namespace diffattn::cpu
