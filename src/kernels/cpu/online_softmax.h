// SPDX-License-Identifier: Apache-2.0
//
// The softmax state of the rows of one map, steps (2) (3) of docs/algorithm.md, in fp32:
//
//   l = sum_n exp2(s[n] - ref),   lse = (ref + log2 l) ln 2
//
// There is no running maximum. Softmax does not depend on the offset ref, and fp32 has exponent
// range to spare, so ref keeps its first value (0 or a saved lse) until a row sum l leaves
// [kTooSmall, kTooLarge). Only then does Maps find the row maximum, make it the new ref and
// recompute the key block. Each row decides from its own scores alone, so its result does not
// depend on the batch or the threads.
#pragma once

#include <cstdint>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

template <class Isa>
struct OnlineSoftmax {
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  int rows = 0;
  float* ref;      // [rows]: offset in log2 units
  float* sum;      // [rows][lanes]: l, one partial sum per vector lane
  float* before;   // [rows][lanes]: `sum` at the last save()
  uint8_t* begun;  // [rows]: 1 once the sum reached kTooSmall or ref became the row maximum

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

  /// True if one fused instruction may compute score * scale - ref (kNearRef).
  bool near(int i) const { return ref[i] <= kNearRef && ref[i] >= -kNearRef; }

  /// True if the row sum is in range; false for NaN. `begun` lifts the lower limit.
  bool suits(int i) {
    const Vec x = Isa::load(sum + i * kLanes);
    if (!Isa::all_below(x, kTooLarge)) return false;
    if (begun[i] == 0 && Isa::sum(x) >= kTooSmall) begun[i] = 1;
    return begun[i] != 0;
  }

  /// Makes `maximum` the ref of row i, if it is larger or the row has no sum yet, and rescales the
  /// sum. If the row saw nothing or only NaN (`maximum` = -inf), ref does not change, so that
  /// exp2(-inf - -inf) is never formed.
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

  /// True if the row saw any column, also if its sum is NaN.
  bool seen(int i) const { return total(i) != 0.0f; }
  float total(int i) const { return Isa::sum(Isa::load(sum + i * kLanes)); }
  /// Returns 1 / sum, or 0 for a row that saw nothing.
  float inverse(int i) const {
    const float l = total(i);
    return l == 0.0f ? 0.0f : 1.0f / l;
  }
  /// Returns the natural log of the sum of exponentials; -inf for a row that saw nothing.
  float lse(int i) const {
    const double l = total(i);
    return static_cast<float>((ref[i] + __builtin_log2(l)) * kLn2);
  }
};

}  // namespace diffattn::cpu
