// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/support/case.h"
#include "tests/support/oracle.h"

/// The yardstick: differential attention as the paper's code computes it in storage type T (float,
/// BFloat16, Float16). Every tensor that the paper's code stores is rounded to T:
///
///   s = round(scale q k), round(s + mask);  p = softmax(s) in fp32, then round(p)
///   a = round(p1 - round(lambda p2));       o = round(a v), products summed in fp32
///   norm in fp32, round; times weight, round; times out_scale, round
///
/// The backward does what autograd would do with these tensors. It rounds dp, ds, dq, the dk and dv
/// of each head and their sums over a group, and every step of the epilogue. It does not round
/// lambda, the norm weight, scale ds, or the sums dlambda, dnorm_weight and dmask. The paper's code
/// rounds these too, so the yardstick is stricter. A row that sees nothing gives 0, not NaN.
namespace diffattn::testing {

struct NaiveForward {
  std::vector<double> out, o, o2;
};

struct NaiveBackward {
  std::vector<double> dq1, dq2, dk1, dk2, dv, dlambda, dnorm_weight, dmask;
};

template <class T>
class Naive {
 public:
  explicit Naive(const Oracle<double>& given) : oracle(given), c(given.c), s(given.s) {}

  NaiveForward forward() const;
  NaiveBackward backward() const;

 private:
  /// The inputs of one (batch entry, head).
  struct Head {
    Head(const Case& c, int64_t batch_entry, int64_t head);
    int64_t b, h;
    Matrix<float> q1, q2;    // [M, D]
    Matrix<float> k1t, k2t;  // [D, N]
    Matrix<float> v;         // [N, Dv]
    std::vector<int64_t> dims;
  };
  struct Row {
    std::vector<float> scores;                       // from the first visible column to the last
    std::vector<float> p1, p2, p1_fp32, p2_fp32, a;  // over the visible columns
    std::vector<float> o, o2, normed;                // [Dv], rounded
    float rstd = 1.0f;
  };
  struct HeadGradients;

  static float round(float value) { return static_cast<float>(T(value)); }
  float weight(int64_t d) const {
    return c.values.norm_weight.empty() ? 1.0f : static_cast<float>(c.values.norm_weight[d]);
  }
  float lambda(int64_t b, int64_t m, int64_t h) const {
    return static_cast<float>(oracle.lambda(b, m, h));
  }
  void softmax(const Head& head, int64_t m, bool second, Row& row) const;
  void compute_row(const Head& head, int64_t m, Row& row) const;
  std::vector<float> epilogue_backward(const Row& row, const double* dout,
                                       std::vector<double>& dweight) const;

  const Oracle<double>& oracle;
  const Case& c;
  const Spec& s;
};

extern template class Naive<float>;
extern template class Naive<BFloat16>;
extern template class Naive<Float16>;

}  // namespace diffattn::testing
