// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/float64/products.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/host/each_isa.h"

// Vectors stay inside functions that are inlined, so how they would be passed does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace diffattn::cpu::float64 {
namespace {

// Panels per pass of add_row_sums: 16 rows of x with 128 columns take 16 KB of L1.
constexpr int64_t kPassPanels = 16;

using Vec [[gnu::vector_size(64), gnu::may_alias, gnu::aligned(8)]] = double;

[[gnu::always_inline]] inline Vec& at(double* p) { return *reinterpret_cast<Vec*>(p); }
[[gnu::always_inline]] inline const Vec& at(const double* p) {
  return *reinterpret_cast<const Vec*>(p);
}

/// Adds a[i, k] b[k] to c[i] over `steps` values of k.
template <int kRows, int kRowStride, int kStepStride>
[[gnu::always_inline]] inline void multiply(Vec (&c)[kRows], const double* a, const double* b,
                                            int64_t b_stride, int64_t steps) {
  for (int64_t k = 0; k < steps; ++k, a += kStepStride, b += b_stride) {
    const Vec x = at(b);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) c[i] += a[i * kRowStride] * x;
  }
}

[[gnu::always_inline]] inline double sum_of(const Vec& x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/// Returns exp(x) for x <= 0 as 2^n exp(f), |f| <= ln(2) / 2: a Taylor polynomial of degree 13,
/// whose remainder is below 1e-17. Below -708 it returns 0; NaN stays NaN.
[[gnu::always_inline]] inline double exp_of(double x) {
  // Adding kRound = 1.5 * 2^52 rounds a double to an integer.
  constexpr double kLog2E = 1.4426950408889634, kRound = 6755399441055744.0;
  constexpr double kLn2High = 0x1.62e42fefa0000p-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  constexpr double kLeast = -708.0;
  constexpr double kInverseFactorials[] = {1.0 / 6227020800,
                                           1.0 / 479001600,
                                           1.0 / 39916800,
                                           1.0 / 3628800,
                                           1.0 / 362880,
                                           1.0 / 40320,
                                           1.0 / 5040,
                                           1.0 / 720,
                                           1.0 / 120,
                                           1.0 / 24,
                                           1.0 / 6,
                                           0.5,
                                           1.0,
                                           1.0};
  const double clamped = x < kLeast ? kLeast : x;
  const double shifted = clamped * kLog2E + kRound;
  const double n = shifted - kRound;
  const double f = (clamped - n * kLn2High) - n * kLn2Low;
  double p = kInverseFactorials[0];
#pragma GCC unroll 16
  for (int i = 1; i < 14; ++i) p = p * f + kInverseFactorials[i];
  const double result =
      std::bit_cast<double>(std::bit_cast<int64_t>(p) + (std::bit_cast<int64_t>(shifted) << 52));
  return x < kLeast ? 0.0 : (x == x ? result : x);
}

}  // namespace

DIFFATTN_EACH_ISA void multiply_panels(PanelRange panels, const double* a, const double* b,
                                       int64_t depth, double factor, double* map) {
  for (int64_t p = panels.first; p < panels.end; ++p) {
    for (int s = 0; s < kBlockRows / kStrip; ++s) {
      Vec c[kStrip] = {};
      multiply<kStrip, 1, kStrip>(c, a + s * depth * kStrip, b + p * depth * kLanes, kLanes, depth);
      double* out = map + (p * kBlockRows + s * kStrip) * kLanes;
      for (int i = 0; i < kStrip; ++i) at(out + i * kLanes) = c[i] * factor;
    }
  }
}

DIFFATTN_EACH_ISA void add_row_sums(PanelRange panels, const double* map, const double* x,
                                    int64_t stride, double* sums) {
  for (int64_t first = panels.first; first < panels.end; first += kPassPanels) {
    const int64_t end = first + kPassPanels < panels.end ? first + kPassPanels : panels.end;
    for (int64_t column = 0; column < stride; column += kLanes) {
      for (int s = 0; s < kBlockRows / kStrip; ++s) {
        double* out = sums + s * kStrip * stride + column;
        Vec c[kStrip];
        for (int i = 0; i < kStrip; ++i) c[i] = at(out + i * stride);
        for (int64_t p = first; p < end; ++p) {
          multiply<kStrip, kLanes, 1>(c, map + (p * kBlockRows + s * kStrip) * kLanes,
                                      x + p * kLanes * stride + column, stride, kLanes);
        }
        for (int i = 0; i < kStrip; ++i) at(out + i * stride) = c[i];
      }
    }
  }
}

DIFFATTN_EACH_ISA void add_key_sums(PanelRange panels, const double* map, const double* x,
                                    int64_t stride, double* sums) {
  constexpr int kKeys = kLanes / 2;  // with all kLanes, AVX2 would lack registers
  for (int64_t n = panels.first * kLanes; n < panels.end * kLanes; n += kKeys) {
    const double* from = map + n / kLanes * kBlockRows * kLanes + n % kLanes;
    for (int64_t column = 0; column < stride; column += kLanes) {
      double* out = sums + n * stride + column;
      Vec c[kKeys] = {};
      multiply<kKeys, 1, kLanes>(c, from, x + column, stride, kBlockRows);
      for (int i = 0; i < kKeys; ++i) at(out + i * stride) += c[i];
    }
  }
}

DIFFATTN_EACH_ISA double softmax_row(PanelRange panels, int i, double* map) {
  constexpr int64_t kStep = kBlockRows * kLanes;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double* const begin = map + panels.first * kStep + i * kLanes;
  double* const end = map + panels.end * kStep;
  double most[kLanes];
  for (double& x : most) x = -kInfinity;
  for (const double* p = begin; p < end; p += kStep) {
    for (int w = 0; w < kLanes; ++w) most[w] = p[w] > most[w] ? p[w] : most[w];
  }
  double maximum = -kInfinity;
  for (const double x : most) maximum = x > maximum ? x : maximum;
  Vec sums = {};
  for (double* p = begin; p < end; p += kStep) {
    for (int w = 0; w < kLanes; ++w) p[w] = exp_of(p[w] - maximum);
    sums += at(p);
  }
  const double sum = sum_of(sums), inverse = 1.0 / sum;
  for (double* p = begin; p < end; p += kStep) at(p) *= inverse;
  return maximum + std::log(sum);
}

DIFFATTN_EACH_ISA void subtract_maps(PanelRange panels, const double* p1, const double* p2,
                                     const double* lambda, double* a) {
  for (int64_t p = panels.first; p < panels.end; ++p) {
    for (int i = 0; i < kBlockRows; ++i) {
      const int64_t entry = (p * kBlockRows + i) * kLanes;
      at(a + entry) = at(p1 + entry) - lambda[i] * at(p2 + entry);
    }
  }
}

DIFFATTN_EACH_ISA double differentiate_row(PanelRange panels, int i, double lambda, double* p1,
                                           double* p2, double* da) {
  constexpr int64_t kStep = kBlockRows * kLanes;
  const int64_t begin = panels.first * kStep + i * kLanes, end = panels.end * kStep;
  Vec sums1 = {}, sums2 = {};
  for (int64_t at_entry = begin; at_entry < end; at_entry += kStep) {
    sums1 += at(p1 + at_entry) * at(da + at_entry);
    sums2 += at(p2 + at_entry) * at(da + at_entry);
  }
  const double mean1 = sum_of(sums1), mean2 = sum_of(sums2);
  for (int64_t at_entry = begin; at_entry < end; at_entry += kStep) {
    Vec &x1 = at(p1 + at_entry), &x2 = at(p2 + at_entry), &d = at(da + at_entry);
    const Vec difference = x1 - lambda * x2;
    x1 *= d - mean1;
    x2 *= (d - mean2) * -lambda;
    d = difference;
  }
  return mean2;
}

DIFFATTN_EACH_ISA double differentiate_shared_row(PanelRange panels, int i, double lambda,
                                                  bool first, double* p1, const double* p2,
                                                  double* da, double* shared) {
  constexpr int64_t kStep = kBlockRows * kLanes;
  const int64_t begin = panels.first * kStep + i * kLanes, end = panels.end * kStep;
  Vec sums1 = {}, sums2 = {};
  for (int64_t at_entry = begin; at_entry < end; at_entry += kStep) {
    sums1 += at(p1 + at_entry) * at(da + at_entry);
    sums2 += at(p2 + at_entry) * at(da + at_entry);
  }
  const double mean1 = sum_of(sums1);
  for (int64_t at_entry = begin; at_entry < end; at_entry += kStep) {
    Vec &x1 = at(p1 + at_entry), &d = at(da + at_entry), &sum = at(shared + at_entry);
    const Vec difference = x1 - lambda * at(p2 + at_entry);
    sum = first ? lambda * d : sum + lambda * d;
    x1 *= d - mean1;
    d = difference;
  }
  return sum_of(sums2);
}

DIFFATTN_EACH_ISA void differentiate_noise_row(PanelRange panels, int i, double* p2,
                                               const double* shared) {
  constexpr int64_t kStep = kBlockRows * kLanes;
  const int64_t begin = panels.first * kStep + i * kLanes, end = panels.end * kStep;
  Vec sums = {};
  for (int64_t at_entry = begin; at_entry < end; at_entry += kStep) {
    sums += at(p2 + at_entry) * at(shared + at_entry);
  }
  const double mean = sum_of(sums);
  for (int64_t at_entry = begin; at_entry < end; at_entry += kStep) {
    at(p2 + at_entry) *= mean - at(shared + at_entry);
  }
}

DIFFATTN_EACH_ISA bool all_finite(const double* x, int64_t count) {
  double zero = 0.0;
  for (int64_t i = 0; i < count; ++i) zero += x[i] * 0.0;
  return zero == 0.0;
}

}  // namespace diffattn::cpu::float64
