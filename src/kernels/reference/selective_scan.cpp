// SPDX-License-Identifier: Apache-2.0
//
// The selective scan as plain loops (equations in selective_scan.h), in double.

#include "kernels/selective_scan.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace diffattn::reference {
namespace {

using Inputs = ScanInputs<double>;

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

bool starts_at(const Inputs& in, int64_t row) {
  return in.starts != nullptr && in.starts[row] != 0;
}

/// Calls visit(row, before, after) for the tokens of one channel, with its states around the token.
template <class Visit>
void each_token(const Inputs& in, int64_t batch, int64_t channel, const Visit& visit) {
  std::vector<double> s(static_cast<size_t>(in.states), 0.0), before;
  const int64_t at = (batch * in.channels + channel) * in.states;
  for (int64_t n = 0; in.initial != nullptr && n < in.states; ++n) {
    s[static_cast<size_t>(n)] = in.initial[at + n];
  }
  for (int64_t t = 0; t < in.length; ++t) {
    const int64_t row = batch * in.length + t;
    if (starts_at(in, row)) s.assign(s.size(), 0.0);
    before = s;
    const double dt = softplus(in.delta[row * in.delta_stride + channel]);  // (1)
    const double u = in.u[row * in.u_stride + channel];
    for (int64_t n = 0; n < in.states; ++n) {  // (2)
      double& x = s[static_cast<size_t>(n)];
      x = std::exp(dt * in.a[channel * in.states + n]) * x + dt * u * in.b[row * in.b_stride + n];
    }
    visit(row, before, s);
  }
}

}  // namespace

void selective_scan(const ScanForward<double>& p) {
  const Inputs& in = p.in;
  for (int64_t batch = 0; batch < in.batch; ++batch) {
    for (int64_t e = 0; e < in.channels; ++e) {
      std::vector<double> last(static_cast<size_t>(in.states), 0.0);
      each_token(in, batch, e, [&](int64_t row, const auto&, const auto& s) {
        double y = in.d[e] * in.u[row * in.u_stride + e];  // (3)
        for (int64_t n = 0; n < in.states; ++n) {
          y += in.c[row * in.c_stride + n] * s[static_cast<size_t>(n)];
        }
        p.y[row * in.channels + e] = y;
        last = s;
      });
      for (int64_t n = 0; n < in.states; ++n) {
        p.last[(batch * in.channels + e) * in.states + n] = last[static_cast<size_t>(n)];
      }
    }
  }
}

void selective_scan_backward(const ScanBackward<double>& p) {
  const Inputs& in = p.in;
  const int64_t rows = in.batch * in.length;
  std::fill_n(p.db, rows * in.states, 0.0);
  std::fill_n(p.dc, rows * in.states, 0.0);
  std::fill_n(p.da, in.channels * in.states, 0.0);
  std::fill_n(p.dd, in.channels, 0.0);
  for (int64_t batch = 0; batch < in.batch; ++batch) {
    for (int64_t e = 0; e < in.channels; ++e) {
      std::vector<std::vector<double>> before, after;
      each_token(in, batch, e, [&](int64_t, const auto& s0, const auto& s1) {
        before.push_back(s0);
        after.push_back(s1);
      });
      std::vector<double> g(static_cast<size_t>(in.states), 0.0);  // carries exp(dt A) g back
      for (int64_t t = in.length - 1; t >= 0; --t) {
        const int64_t row = batch * in.length + t;
        const double raw = in.delta[row * in.delta_stride + e], dt = softplus(raw);
        const double u = in.u[row * in.u_stride + e], dy = p.dy[row * in.channels + e];
        double to_input = 0.0, to_step = 0.0;
        for (int64_t n = 0; n < in.states; ++n) {
          const auto i = static_cast<size_t>(n), at = static_cast<size_t>(t);
          const double a = in.a[e * in.states + n], decay = std::exp(dt * a);
          const double b = in.b[row * in.b_stride + n];
          g[i] += dy * in.c[row * in.c_stride + n];        // (4)
          p.dc[row * in.states + n] += dy * after[at][i];  // (5)
          p.db[row * in.states + n] += dt * u * g[i];
          to_input += g[i] * b;                                          // (6)
          to_step += g[i] * (a * decay * before[at][i] + u * b);         // (7)
          p.da[e * in.states + n] += dt * g[i] * decay * before[at][i];  // (8)
          g[i] = starts_at(in, row) ? 0.0 : g[i] * decay;
        }
        p.du[row * in.channels + e] = in.d[e] * dy + dt * to_input;
        p.ddelta[row * in.channels + e] = to_step / (1.0 + std::exp(-raw));
        p.dd[e] += dy * u;
      }
    }
  }
}

}  // namespace diffattn::reference
