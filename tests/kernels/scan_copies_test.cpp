// SPDX-License-Identifier: Apache-2.0
//
// Each copy of the selective scan that this machine can run against the plain loop in double. The
// tests of tests/models run the copy that the loader picks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/host/cpu_features.h"
#include "kernels/selective_scan.h"
#include "tests/support/rng.h"

namespace diffattn::cpu {
// CMakeLists.txt renames the functions of each copy.
void selective_scan_v1(const ScanForward<float>& params);
void selective_scan_v3(const ScanForward<float>& params);
void selective_scan_v4(const ScanForward<float>& params);
void selective_scan_backward_v1(const ScanBackward<float>& params);
void selective_scan_backward_v3(const ScanBackward<float>& params);
void selective_scan_backward_v4(const ScanBackward<float>& params);
}  // namespace diffattn::cpu

namespace diffattn::testing::scan_copies_test {
namespace {

struct Copy {
  std::string name;
  void (*forward)(const ScanForward<float>&);
  void (*backward)(const ScanBackward<float>&);
};

std::vector<Copy> copies() {
  std::vector<Copy> all{{"default", cpu::selective_scan_v1, cpu::selective_scan_backward_v1}};
  if (cpu::has_avx2()) {
    all.push_back({"x86-64-v3", cpu::selective_scan_v3, cpu::selective_scan_backward_v3});
  }
  if (cpu::has_avx512()) {
    all.push_back({"x86-64-v4", cpu::selective_scan_v4, cpu::selective_scan_backward_v4});
  }
  return all;
}

struct Sizes {
  int64_t batch, length, channels, states;

  int64_t rows() const { return batch * length; }
};

/// The numbers of a scan, and its results.
template <class T>
struct Scan {
  Sizes sizes;
  std::vector<T> u, delta, a, b, c, d, initial, dy;
  std::vector<uint8_t> starts;
  std::vector<T> y, last, du, ddelta, da, db, dc, dd;

  template <class From>
  explicit Scan(const Scan<From>& x) : Scan(x.sizes) {
    const auto copy = [](const std::vector<From>& from, std::vector<T>& to) {
      to.assign(from.begin(), from.end());
    };
    copy(x.u, u);
    copy(x.delta, delta);
    copy(x.a, a);
    copy(x.b, b);
    copy(x.c, c);
    copy(x.d, d);
    copy(x.initial, initial);
    copy(x.dy, dy);
    starts = x.starts;
  }
  explicit Scan(const Sizes& s)
      : sizes(s),
        y(vector_of(s.rows() * s.channels)),
        last(vector_of(s.batch * s.channels * s.states)),
        du(y),
        ddelta(y),
        da(vector_of(s.channels * s.states)),
        db(vector_of(s.rows() * s.states)),
        dc(db),
        dd(vector_of(s.channels)) {}

  static std::vector<T> vector_of(int64_t count) {
    return std::vector<T>(static_cast<size_t>(count));
  }
  ScanInputs<T> inputs() const {
    return {u.data(),       delta.data(),   b.data(),       c.data(),
            a.data(),       d.data(),       starts.data(),  initial.data(),
            sizes.batch,    sizes.length,   sizes.channels, sizes.states,
            sizes.channels, sizes.channels, sizes.states,   sizes.states};
  }
  ScanForward<T> forward() { return {inputs(), y.data(), last.data()}; }
  ScanBackward<T> backward() {
    return {inputs(),  dy.data(), du.data(), ddelta.data(),
            db.data(), dc.data(), da.data(), dd.data()};
  }
};

Scan<float> drawn(const Sizes& sizes, Rng& rng) {
  Scan<float> scan(sizes);
  const auto fill = [&](std::vector<float>& x, int64_t count, const auto& draw) {
    x = Scan<float>::vector_of(count);
    std::generate(x.begin(), x.end(), [&] { return static_cast<float>(draw()); });
  };
  const auto normal = [&] { return rng.normal(); };
  fill(scan.u, sizes.rows() * sizes.channels, normal);
  fill(scan.delta, sizes.rows() * sizes.channels, [&] { return 2.0 * rng.normal() - 1.0; });
  fill(scan.a, sizes.channels * sizes.states, [&] { return rng.uniform(-8.0, -0.1); });
  fill(scan.b, sizes.rows() * sizes.states, normal);
  fill(scan.c, sizes.rows() * sizes.states, normal);
  fill(scan.d, sizes.channels, normal);
  fill(scan.initial, sizes.batch * sizes.channels * sizes.states, normal);
  fill(scan.dy, sizes.rows() * sizes.channels, normal);
  scan.starts.resize(static_cast<size_t>(sizes.rows()));
  for (uint8_t& start : scan.starts) start = rng.chance(0.05) ? 1 : 0;
  return scan;
}

void expect_near(const std::vector<float>& actual, const std::vector<double>& expected,
                 double bound, const std::string& what) {
  double error = 0.0, largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double distance = std::abs(actual[i] - expected[i]);
    error = distance <= error ? error : distance;  // NaN stays
    largest = std::max(largest, std::abs(expected[i]));
  }
  EXPECT_LE(error, bound * (1.0 + largest)) << what;
}

TEST(ScanCopies, EachAgreesWithThePlainLoopInDouble) {
  Rng rng(1);
  // 16 states of 16 channels take a path of their own.
  for (const Sizes& sizes : {Sizes{1, 1, 1, 1}, Sizes{2, 37, 21, 16}, Sizes{1, 200, 160, 16},
                             Sizes{3, 64, 16, 5}, Sizes{2, 65, 48, 32}}) {
    const Scan<float> narrow = drawn(sizes, rng);
    Scan<double> wide(narrow);
    reference::selective_scan(wide.forward());
    reference::selective_scan_backward(wide.backward());
    for (const Copy& copy : copies()) {
      Scan<float> scan(narrow);
      copy.forward(scan.forward());
      copy.backward(scan.backward());
      const std::string what = copy.name + ", " + std::to_string(sizes.channels) + " channels, ";
      expect_near(scan.y, wide.y, 2e-6, what + "y");
      expect_near(scan.last, wide.last, 2e-6, what + "state");
      expect_near(scan.du, wide.du, 5e-6, what + "du");
      expect_near(scan.ddelta, wide.ddelta, 5e-6, what + "ddelta");
      expect_near(scan.da, wide.da, 5e-6, what + "da");
      expect_near(scan.db, wide.db, 5e-6, what + "db");
      expect_near(scan.dc, wide.dc, 5e-6, what + "dc");
      expect_near(scan.dd, wide.dd, 5e-6, what + "dd");
    }
  }
}

}  // namespace
}  // namespace diffattn::testing::scan_copies_test
