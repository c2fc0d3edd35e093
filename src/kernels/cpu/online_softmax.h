// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

/// Row state of one softmax map: its reference and the sum of exp2(score - ref), per vector lane.
///
/// No running maximum is kept. Softmax does not depend on ref, and fp32 has exponents to spare, so
/// ref stays where it started until a sum leaves [kTooSmall, kTooLarge); only then is the maximum
/// looked for and the key block done again. This is decided per row, from that row alone.
template <class Isa>
struct OnlineSoftmax {
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  int rows = 0;
  float* ref;      // [rows], log2 units
  float* sum;      // [rows][lanes]
  float* before;   // [rows][lanes]: `sum` at the last save()
  uint8_t* begun;  // [rows]: is the sum of earlier key blocks above kTooSmall?

  void carve(int count, Carver<Isa>& carver) {
    rows = count;
    ref = carver.template take<float>(rows);
    sum = carver.template take<float>(rows * kLanes);
    before = carver.template take<float>(rows * kLanes);
    begun = carver.template take<uint8_t>(rows);
  }

  void start(int i, float first_ref) {
    ref[i] = first_ref;
    begun[i] = 0;
    Isa::store(sum + i * kLanes, Isa::zero());
  }
  void save(int first, int count) {
    for (int i = first; i < first + count; ++i) {
      Isa::store(before + i * kLanes, Isa::load(sum + i * kLanes));
    }
  }
  void restore(int i) { Isa::store(sum + i * kLanes, Isa::load(before + i * kLanes)); }

  bool near(int i) const { return ref[i] <= kNearRef && ref[i] >= -kNearRef; }

  /// Is the sum in range? False for NaN. A small sum is fine once another key block was large.
  bool suits(int i) {
    const Vec x = Isa::load(sum + i * kLanes);
    if (!Isa::all_below(x, kTooLarge)) return false;
    if (begun[i] == 0 && Isa::sum(x) >= kTooSmall) begun[i] = 1;
    return begun[i] != 0;
  }

  /// Moves ref to the largest score seen. Where nothing or only NaN was seen (`maximum` is -inf),
  /// ref stays: exp2(-inf - -inf) is never formed.
  void move(int i, float maximum) {
    if (maximum == -__builtin_inff()) return;
    const Vec x = Isa::load(sum + i * kLanes);
    if (Isa::sum(x) == 0.0f) {
      ref[i] = maximum;
    } else if (maximum > ref[i]) {
      Isa::store(sum + i * kLanes, Isa::mul(x, Isa::set1(__builtin_exp2f(ref[i] - maximum))));
      ref[i] = maximum;
    }
    begun[i] = 1;
  }

  /// False for a row that saw nothing; true for one that saw NaN.
  bool seen(int i) const { return total(i) != 0.0f; }
  float total(int i) const { return Isa::sum(Isa::load(sum + i * kLanes)); }
  /// 1 / sum, or 0 for a row that saw nothing.
  float inverse(int i) const {
    const float l = total(i);
    return l == 0.0f ? 0.0f : 1.0f / l;
  }
  /// Natural log of the sum of exponentials; -inf for a row that saw nothing.
  float lse(int i) const {
    const double l = total(i);
    return static_cast<float>((ref[i] + __builtin_log2(l)) * kLn2);
  }
};

}  // namespace diffattn::cpu
