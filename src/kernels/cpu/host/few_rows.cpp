// SPDX-License-Identifier: Apache-2.0
//
// y = add + x weight^T + bias for a few rows (few_rows.h). Every weight is read once, in address
// order with prefetches, and used for all rows. Sums are float32. With AVX-512 the passes of
// avx512/dot_pass.h compute the products, those with bfloat16 matrices only where vdpbf16ps is
// faster than FMA. The loops in this file compute the others; the compiler emits a copy of them for
// each instruction set, as in layers.cpp, and all copies add in the same order.

#include "kernels/few_rows.h"

#include <algorithm>
#include <vector>

#include "diffattn/kernels/half.h"
#include "kernels/cpu/dot_rows.h"
#include "kernels/cpu/host/cpu_features.h"
#include "kernels/cpu/host/each_isa.h"
#include "kernels/cpu/host/memory.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {
namespace {

constexpr int kLanes = 16, kStep = 2 * kLanes;
constexpr int kMostRows = 4, kMostOutputs = 2;  // of one pass over weights and x
/// Bytes of weights of a task. Each task starts new streams, which costs 15 % at 128 KB and 3 % at
/// 512 KB (Zen 5, two threads); more would not stay in L2 for later rows. Small matrices have
/// smaller tasks, so that no thread waits long.
constexpr int64_t kLeastTaskBytes = 128 << 10, kMostTaskBytes = 512 << 10;
constexpr int64_t kTasksPerWorker = 8;
constexpr int64_t kAheadBytes = 2 << 10;  // prefetch distance, beyond the hardware prefetchers'
constexpr int64_t kLineBytes = 64;
constexpr int64_t kGroup = 12;  // outputs: a multiple of those of any pass

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Words = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));

/// Loads 32 weights as floats: the first and the second 16, or, of bfloat16, the even and the odd
/// ones, which takes one shift and one mask. `turned` puts x into the same order.
[[gnu::always_inline]] inline void load(const float* from, Lanes& first, Lanes& second) {
  __builtin_memcpy(&first, from, sizeof(first));
  __builtin_memcpy(&second, from + kLanes, sizeof(second));
}
[[gnu::always_inline]] inline void load(const BFloat16* from, Lanes& even, Lanes& odd) {
  Words words;
  __builtin_memcpy(&words, from, sizeof(words));
  const Words low = words << 16, high = words & 0xffff0000u;
  __builtin_memcpy(&even, &low, sizeof(even));
  __builtin_memcpy(&odd, &high, sizeof(odd));
}

/// Returns x, rounded to bfloat16, with even and odd elements apart in each block of 32.
std::vector<float> turned(const FewRows& p) {
  const auto rounded = [&](int64_t i) { return static_cast<float>(BFloat16(p.x[i])); };
  std::vector<float> y(static_cast<size_t>(p.rows * p.width));
  for (int64_t i = 0; i < p.rows * p.width; ++i) y[static_cast<size_t>(i)] = rounded(i);
  for (int64_t row = 0; row < p.rows; ++row) {
    for (int64_t i = row * p.width; i + kStep <= (row + 1) * p.width; i += kStep) {
      for (int64_t j = 0; j < kLanes; ++j) {
        y[static_cast<size_t>(i + j)] = rounded(i + 2 * j);
        y[static_cast<size_t>(i + kLanes + j)] = rounded(i + 2 * j + 1);
      }
    }
  }
  return y;
}

/// Computes sums[r][o] = x[r] . weight[o] for R rows of x and O rows of weights. x is in the order
/// of `load`.
template <int R, int O, class T>
[[gnu::always_inline]] inline void dots(const float* x, int64_t width, const T* weight,
                                        float (&sums)[kMostRows][kMostOutputs]) {
  Lanes even[R][O], odd[R][O];
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) even[r][o] = odd[r][o] = Lanes{};
  }
  constexpr int64_t kAhead = kAheadBytes / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kLine = kLineBytes / static_cast<int64_t>(sizeof(T));
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    Lanes first[O], second[O];
#pragma GCC unroll 2
    for (int o = 0; o < O; ++o) {
      const T* const from = weight + o * width + i;
      for (int64_t line = 0; line < kStep; line += kLine) {
        __builtin_prefetch(from + O * kAhead + line);  // harmless past the end
      }
      load(from, first[o], second[o]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      Lanes x_first, x_second;
      load(x + r * width + i, x_first, x_second);
#pragma GCC unroll 2
      for (int o = 0; o < O; ++o) {
        even[r][o] += x_first * first[o];
        odd[r][o] += x_second * second[o];
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) {
      const Lanes both = even[r][o] + odd[r][o];
      float halves[kLanes / 2];
      for (int j = 0; j < kLanes / 2; ++j) halves[j] = both[j] + both[j + kLanes / 2];
      for (int count = kLanes / 4; count > 0; count /= 2) {
        for (int j = 0; j < count; ++j) halves[j] += halves[j + count];
      }
      float& sum = sums[r][o] = halves[0];
      for (int64_t k = i; k < width; ++k) {
        sum += x[r * width + k] * static_cast<float>(weight[o * width + k]);
      }
    }
  }
}

/// Outputs [begin, end) for rows [row, row + R). x of these rows stays in L1.
template <int R, int O, class T>
[[gnu::always_inline]] inline void rows_of(const FewRows& p, const FewRowsMatrix& m, int64_t row,
                                           int64_t begin, int64_t end) {
  const T *weight = static_cast<const T*>(m.weight), *bias = static_cast<const T*>(m.bias);
  const float* const x = p.x + row * p.width;
  const auto store = [&](int64_t o, int count, const float(&sums)[kMostRows][kMostOutputs]) {
    for (int j = 0; j < count; ++j) {
      const float offset = bias != nullptr ? static_cast<float>(bias[o + j]) : 0.0f;
      for (int r = 0; r < R; ++r) {
        const int64_t at = (row + r) * m.outputs + o + j;
        m.y[at] = (m.add != nullptr ? m.add[at] : 0.0f) + (sums[r][j] + offset);
      }
    }
  };
  float sums[kMostRows][kMostOutputs];
  int64_t o = begin;
  for (; o + O <= end; o += O) {
    dots<R, O>(x, p.width, weight + o * p.width, sums);
    store(o, O, sums);
  }
  for (; o < end; ++o) {
    dots<R, 1>(x, p.width, weight + o * p.width, sums);
    store(o, 1, sums);
  }
}

/// A task's weights come from memory for the first rows and from L2 for the others.
template <class T>
[[gnu::always_inline]] inline void outputs_of(const FewRows& p, const FewRowsMatrix& m,
                                              int64_t begin, int64_t end) {
  // Only AVX-512 has registers for the accumulators of 4 rows and 2 outputs.
  const bool two_outputs = __builtin_cpu_supports("avx512f");
  for (int64_t row = 0; row < p.rows;) {
    const int64_t left = p.rows - row;
    if (left >= 4) {
      two_outputs ? rows_of<4, 2, T>(p, m, row, begin, end)
                  : rows_of<4, 1, T>(p, m, row, begin, end);
      row += 4;
    } else if (left >= 2) {
      rows_of<2, 1, T>(p, m, row, begin, end);
      row += 2;
    } else {
      rows_of<1, 1, T>(p, m, row, begin, end);
      row += 1;
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

/// Calls run(matrix, begin, end) for outputs [begin, end) of every matrix, on all threads.
template <class Run>
void for_outputs(const FewRows& p, const Run& run) {
  const int64_t row_bytes = std::max<int64_t>(1, p.width) * (p.dtype == Dtype::kBFloat16 ? 2 : 4);
  int64_t outputs = 0;
  for (const FewRowsMatrix& m : p.matrices) outputs += m.outputs;
  const int64_t wanted = outputs * row_bytes / (kTasksPerWorker * threads().count());
  const int64_t task_bytes = std::clamp(wanted, kLeastTaskBytes, kMostTaskBytes);
  const int64_t block = std::max<int64_t>(1, task_bytes / row_bytes / kGroup) * kGroup;
  int64_t tasks = 0;
  for (const FewRowsMatrix& m : p.matrices) tasks += (m.outputs + block - 1) / block;
  parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
    for (const FewRowsMatrix& m : p.matrices) {
      const int64_t own = (m.outputs + block - 1) / block;
      if (task < own) return run(m, task * block, std::min(m.outputs, (task + 1) * block));
      task -= own;
    }
  });
}

/// Writes x in the order in which dot_rows reads it: the rows of a pass beside each other in pieces
/// of a vector, padded with zeros. Rows whose distance is a power of two would share few lines of
/// the L1 cache, so that the rows of a pass evict each other.
template <class T>
void pack_rows(const T* x, int64_t rows, int64_t width, T* packed) {
  constexpr int64_t step = kVectorBytes / static_cast<int64_t>(sizeof(T));
  for (int64_t row = 0; row < rows;) {
    const int64_t together = rows_of_pass(rows - row);
    for (int64_t i = 0; i < width; i += step) {
      for (int64_t r = row; r < row + together; ++r, packed += step) {
        const T* const from = x + r * width + i;
        std::fill(std::copy_n(from, std::min(step, width - i), packed), packed + step, T{});
      }
    }
    row += together;
  }
}

template <class T>
void few_rows_by_dot_products(const FewRows& p, const T* x,
                              void (*dot_rows)(const DotRows<T>&, int64_t, int64_t)) {
  const int64_t bytes = p.rows * packed_width<T>(p.width) * static_cast<int64_t>(sizeof(T));
  T* const packed = reinterpret_cast<T*>(CallMemory::take(CallMemory::kRows, bytes));
  pack_rows(x, p.rows, p.width, packed);
  for_outputs(p, [&](const FewRowsMatrix& m, int64_t begin, int64_t end) {
    dot_rows({.x = packed,
              .weight = static_cast<const T*>(m.weight),
              .bias = static_cast<const T*>(m.bias),
              .add = m.add,
              .y = m.y,
              .rows = p.rows,
              .width = p.width,
              .outputs = m.outputs},
             begin, end);
  });
}

}  // namespace

void portable_few_rows(const FewRows& params) {
  FewRows p = params;
  const std::vector<float> x = p.dtype == Dtype::kBFloat16 ? turned(p) : std::vector<float>();
  if (!x.empty()) p.x = x.data();
  const auto run = p.dtype == Dtype::kBFloat16 ? bfloat16_outputs : float_outputs;
  for_outputs(p,
              [&](const FewRowsMatrix& m, int64_t begin, int64_t end) { run(p, m, begin, end); });
}

bool mkl_uses_half() { return has_full_avx512_on_amd(); }

void few_rows(const FewRows& p) {
  if (p.dtype == Dtype::kFloat32 && has_avx512()) {
    return few_rows_by_dot_products(p, p.x, avx512::dot_rows);
  }
  if (p.dtype == Dtype::kBFloat16 && has_fast_bf16_dot_products()) {
    const int64_t count = p.rows * p.width;
    auto* const x = reinterpret_cast<uint16_t*>(
        CallMemory::take(CallMemory::kRounded, count * static_cast<int64_t>(sizeof(uint16_t))));
    avx512_bf16::to_bfloat16(p.x, x, count);
    return few_rows_by_dot_products<uint16_t>(p, x, avx512_bf16::dot_rows);
  }
  portable_few_rows(p);
}

}  // namespace diffattn::cpu
