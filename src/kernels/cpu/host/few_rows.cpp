// SPDX-License-Identifier: Apache-2.0
//
// y = add + x weight^T + bias for a few rows (few_rows.h). Every weight is read once, in address
// order with prefetches, and used for all rows. The compiler emits a copy for each instruction set,
// as in layers.cpp. A vector has 16 lanes in all copies, so that all add in the same order. Sums
// are float32.

#include "kernels/few_rows.h"

#include <algorithm>

#include "diffattn/kernels/half.h"
#include "kernels/cpu/host/each_isa.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {
namespace {

constexpr int kLanes = 16, kStep = 2 * kLanes;
constexpr int kTogether = 4;              // rows that share each load of weights
constexpr int64_t kTaskBytes = 64 << 10;  // weights of a task: enough to pay for a thread
constexpr int64_t kAheadBytes = 2 << 10;  // prefetch distance, beyond the hardware prefetchers'
constexpr int64_t kLineBytes = 64;

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Words = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
using Halves = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t))));

/// Loads 16 elements as floats.
[[gnu::always_inline]] inline void load(const float* from, Lanes& to) {
  __builtin_memcpy(&to, from, sizeof(to));
}
[[gnu::always_inline]] inline void load(const BFloat16* from, Lanes& to) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  __builtin_memcpy(&to, &words, sizeof(to));
}

/// Computes out[r] = x[r] . weight for R rows of x.
template <int R, class T>
[[gnu::always_inline]] inline void dots(const float* x, int64_t width, const T* weight,
                                        float (&out)[kTogether]) {
  Lanes even[R], odd[R];
  for (int r = 0; r < R; ++r) even[r] = odd[r] = Lanes{};
  constexpr int64_t kAhead = kAheadBytes / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kLine = kLineBytes / static_cast<int64_t>(sizeof(T));
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    for (int64_t line = 0; line < kStep; line += kLine) {
      __builtin_prefetch(weight + i + kAhead + line);  // harmless past the end
    }
    Lanes first, second, mine;
    load(weight + i, first);
    load(weight + i + kLanes, second);
    for (int r = 0; r < R; ++r) {
      load(x + r * width + i, mine);
      even[r] += mine * first;
      load(x + r * width + i + kLanes, mine);
      odd[r] += mine * second;
    }
  }
  for (int r = 0; r < R; ++r) {
    const Lanes both = even[r] + odd[r];
    float sums[kLanes / 2];
    for (int j = 0; j < kLanes / 2; ++j) sums[j] = both[j] + both[j + kLanes / 2];
    for (int count = kLanes / 4; count > 0; count /= 2) {
      for (int j = 0; j < count; ++j) sums[j] += sums[j + count];
    }
    out[r] = sums[0];
    for (int64_t k = i; k < width; ++k) out[r] += x[r * width + k] * static_cast<float>(weight[k]);
  }
}

template <class T>
[[gnu::always_inline]] inline void outputs_of(const FewRows& p, const FewRowsMatrix& m,
                                              int64_t begin, int64_t end) {
  const T *weight = static_cast<const T*>(m.weight), *bias = static_cast<const T*>(m.bias);
  for (int64_t o = begin; o < end; ++o) {
    const float offset = bias != nullptr ? static_cast<float>(bias[o]) : 0.0f;
    for (int64_t row = 0; row < p.rows; row += kTogether) {
      const int count = static_cast<int>(std::min<int64_t>(kTogether, p.rows - row));
      const float* x = p.x + row * p.width;
      const T* w = weight + o * p.width;
      float sums[kTogether];
      switch (count) {
        case 1: dots<1>(x, p.width, w, sums); break;
        case 2: dots<2>(x, p.width, w, sums); break;
        case 3: dots<3>(x, p.width, w, sums); break;
        default: dots<4>(x, p.width, w, sums); break;
      }
      for (int r = 0; r < count; ++r) {
        const int64_t at = (row + r) * m.outputs + o;
        m.y[at] = (m.add != nullptr ? m.add[at] : 0.0f) + (sums[r] + offset);
      }
    }
  }
}

DIFFATTN_EACH_ISA void float_outputs(const FewRows& p, const FewRowsMatrix& m, int64_t begin,
                                     int64_t end) {
  outputs_of<float>(p, m, begin, end);
}

DIFFATTN_EACH_ISA void bfloat16_outputs(const FewRows& p, const FewRowsMatrix& m, int64_t begin,
                                        int64_t end) {
  outputs_of<BFloat16>(p, m, begin, end);
}

}  // namespace

void few_rows(const FewRows& p) {
  const auto run = p.dtype == Dtype::kBFloat16 ? bfloat16_outputs : float_outputs;
  const int64_t row_bytes = std::max<int64_t>(1, p.width) * (p.dtype == Dtype::kBFloat16 ? 2 : 4);
  const int64_t block = std::max<int64_t>(1, kTaskBytes / row_bytes);
  int64_t tasks = 0;
  for (const FewRowsMatrix& m : p.matrices) tasks += (m.outputs + block - 1) / block;
  parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
    for (const FewRowsMatrix& m : p.matrices) {
      const int64_t own = (m.outputs + block - 1) / block;
      if (task < own) return run(p, m, task * block, std::min(m.outputs, (task + 1) * block));
      task -= own;
    }
  });
}

}  // namespace diffattn::cpu
