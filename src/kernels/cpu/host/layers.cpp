// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm, SwiGLU and rotary embedding (formulas in layers.h), all in float32. The inner loops have
// a fixed length, so that the compiler vectorises them for each instruction set (each_isa.h).

#include "kernels/layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/host/each_isa.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {
namespace {

constexpr int kLanes = 16;                // floats of the widest vector
constexpr int64_t kBlockRows = 64;        // rows of a task; dweight is summed per task, in order
constexpr int64_t kBlockCount = 1 << 15;  // elements of a task

float sum_of(const float (&lanes)[kLanes]) {
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

/// Returns the sum of a b, or of a b c if c is given.
DIFFATTN_EACH_ISA float dot(const float* a, const float* b, const float* c, int64_t width) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  if (c != nullptr) {
    for (; i + kLanes <= width; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j] * c[i + j];
    }
    for (; i < width; ++i) lanes[0] += a[i] * b[i] * c[i];
  } else {
    for (; i + kLanes <= width; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
    }
    for (; i < width; ++i) lanes[0] += a[i] * b[i];
  }
  return sum_of(lanes);
}

/// y = weight * x * factor
DIFFATTN_EACH_ISA void scaled(const float* x, const float* weight, float factor, float* y,
                              int64_t width) {
  if (weight == nullptr) {
    for (int64_t i = 0; i < width; ++i) y[i] = x[i] * factor;
  } else {
    for (int64_t i = 0; i < width; ++i) y[i] = x[i] * factor * weight[i];
  }
}

/// dx = rstd * (weight * dy - x * shrink)
DIFFATTN_EACH_ISA void norm_gradient(const float* dy, const float* x, const float* weight,
                                     float rstd, float shrink, float* dx, int64_t width) {
  if (weight == nullptr) {
    for (int64_t i = 0; i < width; ++i) dx[i] = rstd * (dy[i] - x[i] * shrink);
  } else {
    for (int64_t i = 0; i < width; ++i) dx[i] = rstd * (weight[i] * dy[i] - x[i] * shrink);
  }
}

/// sums += dy * x * rstd
DIFFATTN_EACH_ISA void add_products(const float* dy, const float* x, float rstd, float* sums,
                                    int64_t width) {
  for (int64_t i = 0; i < width; ++i) sums[i] += dy[i] * x[i] * rstd;
}

DIFFATTN_EACH_ISA void swiglu_block(const float* gate, const float* up, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = gate[i] * up[i] / (1.0f + fast_exp(-gate[i]));
}

DIFFATTN_EACH_ISA void swiglu_gradient(const float* dy, const float* gate, const float* up,
                                       float* dgate, float* dup, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float sigmoid = 1.0f / (1.0f + fast_exp(-gate[i]));
    const float silu = gate[i] * sigmoid;
    dup[i] = dy[i] * silu;
    dgate[i] = dy[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
  }
}

/// Sets mean[i] to the mean of x^(2 i + 2).
DIFFATTN_EACH_ISA void even_moments(const float* x, int64_t width, double (&mean)[3]) {
  constexpr int kChains = 16;  // additions that the compiler may do together
  double sums[3][kChains] = {};
  for (int64_t i = 0; i < width; i += kChains) {
    const int64_t count = std::min<int64_t>(kChains, width - i);
    double square[kChains] = {};
    for (int64_t j = 0; j < count; ++j) square[j] = static_cast<double>(x[i + j]) * x[i + j];
    for (int j = 0; j < kChains; ++j) {
      sums[0][j] += square[j];
      sums[1][j] += square[j] * square[j];
      sums[2][j] += square[j] * square[j] * square[j];
    }
  }
  for (int power = 0; power < 3; ++power) {
    mean[power] =
        std::accumulate(sums[power], sums[power] + kChains, 0.0) / static_cast<double>(width);
  }
}

/// y = (((third t + second) t + first) t + bias) up with t = gate.
DIFFATTN_EACH_ISA void cubic_block(const float* gate, const float* up, float first, float second,
                                   float third, float bias, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float t = gate[i];
    y[i] = (((third * t + second) * t + first) * t + bias) * up[i];
  }
}

DIFFATTN_EACH_ISA void turn_halves(const float* x, const float* cos, const float* sin,
                                   float direction, float* y, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], s = sin[i] * direction;
    y[i] = a * cos[i] - b * s;
    y[i + half] = b * cos[i] + a * s;
  }
}

void turn_pairs(const float* x, const float* cos, const float* sin, float direction, float* y,
                int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], s = sin[i] * direction;
    y[2 * i] = a * cos[i] - b * s;
    y[2 * i + 1] = b * cos[i] + a * s;
  }
}

/// Calls body(begin, end) in parallel for blocks of [0, count).
template <class Body>
void over_blocks(int64_t count, int64_t block, const Body& body) {
  const int64_t tasks = (count + block - 1) / block;
  parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
    body(task * block, std::min(count, (task + 1) * block));
  });
}

}  // namespace

void rms_norm(const RmsNorm& p) {
  over_blocks(p.rows, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = p.x + row * p.width;
      const float mean = dot(x, x, nullptr, p.width) / static_cast<float>(p.width);
      p.rstd[row] = 1.0f / std::sqrt(mean + p.eps);
      scaled(x, p.weight, p.rstd[row], p.y + row * p.width, p.width);
    }
  });
}

void rms_norm_backward(const RmsNormBackward& p) {
  const int64_t blocks = (p.rows + kBlockRows - 1) / kBlockRows;
  std::vector<float> sums(p.dweight != nullptr ? static_cast<size_t>(blocks * p.width) : 0, 0.0f);
  over_blocks(p.rows, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *dy = p.dy + row * p.width, *x = p.x + row * p.width;
      const float rstd = p.rstd[row];
      const float shrink =
          dot(dy, x, p.weight, p.width) * rstd * rstd / static_cast<float>(p.width);
      norm_gradient(dy, x, p.weight, rstd, shrink, p.dx + row * p.width, p.width);
      if (p.dweight != nullptr) {
        add_products(dy, x, rstd, sums.data() + begin / kBlockRows * p.width, p.width);
      }
    }
  });
  if (p.dweight == nullptr) return;
  std::fill(p.dweight, p.dweight + p.width, 0.0f);
  for (int64_t block = 0; block < blocks; ++block) {
    const float* block_sums = sums.data() + block * p.width;
    for (int64_t i = 0; i < p.width; ++i) p.dweight[i] += block_sums[i];
  }
}

void swiglu(const float* gate, const float* up, float* y, int64_t count) {
  over_blocks(count, kBlockCount, [&](int64_t begin, int64_t end) {
    swiglu_block(gate + begin, up + begin, y + begin, end - begin);
  });
}

void swiglu_backward(const float* dy, const float* gate, const float* up, float* dgate, float* dup,
                     int64_t count) {
  over_blocks(count, kBlockCount, [&](int64_t begin, int64_t end) {
    swiglu_gradient(dy + begin, gate + begin, up + begin, dgate + begin, dup + begin, end - begin);
  });
}

void swiglu_rows(const float* both, float* y, int64_t rows, int64_t width) {
  over_blocks(rows, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = both + 2 * row * width;
      swiglu_block(gate, gate + width, y + row * width, width);
    }
  });
}

void swiglu_rows_backward(const float* dy, const float* both, float* dboth, int64_t rows,
                          int64_t width) {
  over_blocks(rows, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = both + 2 * row * width;
      float* dgate = dboth + 2 * row * width;
      swiglu_gradient(dy + row * width, gate, gate + width, dgate, dgate + width, width);
    }
  });
}

void poly_glu(const PolyGlu& p) {
  over_blocks(p.rows, 1, [&](int64_t row, int64_t) {
    const float* const gate = p.gate + row * p.width;
    double mean[3];
    even_moments(gate, p.width, mean);
    const auto factor = [&](int i) {  // of t^(i + 1)
      return static_cast<float>(p.weight[2 - i] / std::sqrt(mean[i] + p.eps));
    };
    cubic_block(gate, p.up + row * p.width, factor(0), factor(1), factor(2), p.bias,
                p.y + row * p.width, p.width);
  });
}

void rotate(const Rotate& p) {
  const int64_t half = p.width / 2;
  over_blocks(p.tokens, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float *cos = p.cos + token % p.table_rows * half, *sin = p.sin + (cos - p.cos);
      for (int64_t head = 0; head < p.heads; ++head) {
        const float* x = p.x + token * p.token_stride + head * p.head_stride;
        float* y = p.y + (token * p.heads + head) * p.dim;
        (p.interleaved ? turn_pairs : turn_halves)(x, cos, sin, p.direction, y, half);
        std::copy(x + p.width, x + p.dim, y + p.width);
      }
    }
  });
}

}  // namespace diffattn::cpu
