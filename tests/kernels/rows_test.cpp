// SPDX-License-Identifier: Apache-2.0
//
// Products of a few rows, PolyGLU and the cross-entropy of rows, against sums in double.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "diffattn/kernels/cpu.h"
#include "diffattn/kernels/half.h"
#include "kernels/few_rows.h"
#include "kernels/layers.h"
#include "kernels/loss.h"
#include "tests/support/rng.h"

namespace diffattn::testing::rows_test {
namespace {

std::vector<float> random_floats(Rng& rng, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(rng.normal());
  return values;
}

/// A matrix of one element type, and its values as floats.
struct Matrix {
  std::vector<float> values;
  std::vector<BFloat16> halves;

  Matrix(Rng& rng, int64_t count, Dtype dtype) : values(random_floats(rng, count)) {
    if (dtype != Dtype::kBFloat16) return;
    for (float& value : values) {
      halves.emplace_back(value);
      value = static_cast<float>(halves.back());
    }
  }
  const void* data() const {
    return halves.empty() ? static_cast<const void*>(values.data()) : halves.data();
  }
};

TEST(FewRows, EqualSumsInDouble) {
  Rng rng(1);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    for (const int64_t rows : {1, 2, 3, 4, 7, 8, 13}) {
      for (const int64_t width : {1, 31, 32, 100, 385, 1024}) {
        const int64_t outputs[2] = {1, 700};  // the second is more than one task
        const std::vector<float> x = random_floats(rng, rows * width);
        // Products with bfloat16 matrices round x.
        std::vector<float> read = x;
        for (float& value : read) {
          if (dtype == Dtype::kBFloat16) value = static_cast<float>(BFloat16(value));
        }
        const std::vector<float> add = random_floats(rng, rows * outputs[1]);
        const Matrix first(rng, width, dtype), second(rng, width * outputs[1], dtype);
        const Matrix bias(rng, outputs[1], dtype);
        for (const auto compute : {cpu::few_rows, cpu::portable_few_rows}) {
          std::vector<float> y1(static_cast<size_t>(rows)), y2 = add;
          const cpu::FewRowsMatrix matrices[2] = {
              {.weight = first.data(), .y = y1.data(), .outputs = 1},
              {.weight = second.data(),
               .bias = bias.data(),
               .add = y2.data(),
               .y = y2.data(),
               .outputs = outputs[1]}};
          compute({x.data(), rows, width, dtype, matrices});
          const auto want = [&](const Matrix& m, int64_t row, int64_t o) {
            double sum = 0.0;
            for (int64_t i = 0; i < width; ++i) {
              sum += static_cast<double>(read[row * width + i]) * m.values[o * width + i];
            }
            return sum;
          };
          const double tolerance = 1e-6 * (4.0 + static_cast<double>(width) / 8.0);
          for (int64_t row = 0; row < rows; ++row) {
            EXPECT_NEAR(y1[row], want(first, row, 0), tolerance);
            for (int64_t o = 0; o < outputs[1]; ++o) {
              const int64_t at = row * outputs[1] + o;
              ASSERT_NEAR(y2[at], add[at] + bias.values[o] + want(second, row, o), tolerance)
                  << rows << " rows, width " << width << ", output " << o;
            }
          }
        }
      }
    }
  }
}

TEST(FewRows, DependNeitherOnThreadsNorOnOtherRows) {
  Rng rng(2);
  constexpr int64_t kRows = 15, kWidth = 333, kOutputs = 5003;  // threads change the size of a task
  const std::vector<float> x = random_floats(rng, kRows * kWidth);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    const Matrix w(rng, kWidth * kOutputs, dtype);
    for (const auto compute : {cpu::few_rows, cpu::portable_few_rows}) {
      const auto run = [&](int64_t first, int64_t rows, int64_t threads) {
        cpu::set_thread_count(threads);
        std::vector<float> y(static_cast<size_t>(rows * kOutputs));
        const cpu::FewRowsMatrix matrix{.weight = w.data(), .y = y.data(), .outputs = kOutputs};
        compute({x.data() + first * kWidth, rows, kWidth, dtype, {&matrix, 1}});
        cpu::set_thread_count(0);
        return y;
      };
      const std::vector<float> all = run(0, kRows, 1);
      EXPECT_EQ(run(0, kRows, 3), all);
      for (int64_t row = 0; row < kRows; ++row) {
        const std::vector<float> mine(all.begin() + row * kOutputs,
                                      all.begin() + (row + 1) * kOutputs);
        EXPECT_EQ(run(row, 1, 2), mine) << row;
      }
    }
  }
}

TEST(PolyGlu, EqualsItsFormulaInDouble) {
  Rng rng(3);
  constexpr int64_t kRows = 3;
  for (const int64_t width : {1, 15, 16, 100, 1027}) {
    const std::vector<float> gate = random_floats(rng, kRows * width);
    const std::vector<float> up = random_floats(rng, kRows * width);
    std::vector<float> y = gate;
    cpu::poly_glu({.gate = y.data(),
                   .up = up.data(),
                   .y = y.data(),
                   .rows = kRows,
                   .width = width,
                   .weight = {0.5f, -0.25f, 0.75f},
                   .bias = 0.125f,
                   .eps = 1e-3f});
    for (int64_t row = 0; row < kRows; ++row) {
      const float* const t = gate.data() + row * width;
      const auto normed = [&](int64_t i, int power) {
        double sum = 0.0;
        for (int64_t j = 0; j < width; ++j) sum += std::pow(t[j], 2 * power);
        return std::pow(t[i], power) / std::sqrt(sum / static_cast<double>(width) + 1e-3f);
      };
      for (int64_t i = 0; i < width; i += 1 + width / 20) {
        const double poly = 0.5 * normed(i, 3) - 0.25 * normed(i, 2) + 0.75 * normed(i, 1) + 0.125;
        const auto at = static_cast<size_t>(row * width + i);
        EXPECT_NEAR(y[at], poly * up[at], 1e-5 * (1.0 + std::abs(poly * up[at]))) << width;
      }
    }
  }
}

struct LossCase {
  std::vector<float> logits;
  std::vector<int64_t> labels;
  int64_t classes = 0;
  float smoothing = 0.0f, z_loss = 0.0f, factor = 1.0f;
};

/// Returns the loss of one row by its definition, in double.
double row_loss(const LossCase& c, size_t row, const std::vector<double>& z) {
  double sum = 0.0, total = 0.0;
  for (const double value : z) {
    sum += std::exp(value);
    total += value;
  }
  const double lse = std::log(sum);
  return lse - (1.0 - c.smoothing) * z[static_cast<size_t>(c.labels[row])] -
         c.smoothing * total / static_cast<double>(c.classes) + c.z_loss * lse * lse;
}

TEST(CrossEntropyRows, LossAndGradientOfTheDefinition) {
  Rng rng(3);
  for (const int64_t classes : {1, 5, 16, 131}) {
    for (const bool extras : {false, true}) {
      LossCase c;
      c.classes = classes;
      if (extras) c.smoothing = 0.1f, c.z_loss = 0.02f, c.factor = 0.25f;
      const int64_t rows = 19;
      c.logits = random_floats(rng, rows * classes);
      for (float& z : c.logits) z *= 3.0f;
      for (int64_t row = 0; row < rows; ++row)
        c.labels.push_back(row % 4 == 3 ? -7 : row % classes);
      std::vector<float> gradient = c.logits;
      std::vector<double> loss(static_cast<size_t>(rows));
      cpu::cross_entropy({gradient.data(), c.labels.data(), loss.data(), rows, classes, -7,
                          c.smoothing, c.z_loss, c.factor});
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        const auto begin = c.logits.begin() + static_cast<int64_t>(row) * classes;
        std::vector<double> z(begin, begin + classes);
        const bool counts = c.labels[row] >= 0;
        EXPECT_NEAR(loss[row], counts ? row_loss(c, row, z) : 0.0, 2e-6);
        for (size_t i = 0; i < z.size(); ++i) {
          const double at = z[i], step = 1e-5;
          z[i] = at + step;
          const double above = counts ? row_loss(c, row, z) : 0.0;
          z[i] = at - step;
          const double below = counts ? row_loss(c, row, z) : 0.0;
          z[i] = at;
          EXPECT_NEAR(gradient[row * z.size() + i], c.factor * (above - below) / (2 * step), 1e-6);
        }
      }
    }
  }
}

/// Eight rows of a large vocabulary are eight tasks. Runs in a process of its own, because
/// use_threads cannot be undone.
TEST(CrossEntropyRows, LargeRowsAreSharedOut) {
  const auto work = [] {
    static int64_t workers = 0;
    cpu::use_threads({[] { return int64_t{16}; },
                      [](int64_t wanted, void (*body)(void*), void* context) {
                        workers = wanted;
                        body(context);
                      }});
    const int64_t rows = 8, classes = 131072;
    std::vector<float> logits(static_cast<size_t>(rows * classes));
    const std::vector<int64_t> labels(static_cast<size_t>(rows));
    std::vector<double> loss(static_cast<size_t>(rows));
    cpu::cross_entropy({.logits = logits.data(),
                        .labels = labels.data(),
                        .loss = loss.data(),
                        .rows = rows,
                        .classes = classes,
                        .ignored = -1});
    std::_Exit(static_cast<int>(workers));
  };
  EXPECT_EXIT(work(), ::testing::ExitedWithCode(8), "");
}

/// Returns the loss of one row with label 3. Overwrites z with the gradient.
double loss_of_row(std::vector<float>& z) {
  const int64_t label = 3;
  double loss = 0.0;
  cpu::cross_entropy({.logits = z.data(),
                      .labels = &label,
                      .loss = &loss,
                      .rows = 1,
                      .classes = static_cast<int64_t>(z.size()),
                      .ignored = -1});
  return loss;
}

TEST(CrossEntropyRows, NothingThatIsNotANumberIsHidden) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int64_t place : {0, 7, 40}) {
    for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> z(41, 0.5f);
      z[static_cast<size_t>(place)] = bad;
      const double loss = loss_of_row(z);
      EXPECT_TRUE(std::isnan(loss)) << bad << " at " << place;
      EXPECT_TRUE(std::isnan(z[0]));
    }
  }
  // A logit of -inf is valid: it excludes a token.
  std::vector<float> z(20, 0.0f);
  z[4] = -kInf;
  EXPECT_NEAR(loss_of_row(z), std::log(19.0), 1e-6);
  EXPECT_NEAR(z[4], 0.0f, 1e-30f);
}

}  // namespace
}  // namespace diffattn::testing::rows_test
