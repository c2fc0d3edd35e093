// SPDX-License-Identifier: Apache-2.0
//
// The parts of a generation step on a CPU. The time goes into `few_rows`, which reads the weights;
// everything else is a pass over a few rows.

#include "kernels/token_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "diffattn/kernels/half.h"
#include "kernels/few_rows.h"
#include "kernels/layers.h"

namespace diffattn::cpu::token {
namespace {

/// Calls f with the model's element type.
template <class F>
void with_type(const Batch& batch, const F& f) {
  if (batch.dtype == Dtype::kBFloat16) return f(BFloat16{});
  f(float{});
}

template <class T>
void narrow(const float* from, T* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
}

template <class T>
std::vector<float> widened(const void* from, int64_t count) {
  const T* const data = static_cast<const T*>(from);
  std::vector<float> wide(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) wide[static_cast<size_t>(i)] = static_cast<float>(data[i]);
  return wide;
}

void multiply(Products products, const Batch& batch, const float* x, int64_t width,
              std::span<const FewRowsMatrix> matrices) {
  products(
      {.x = x, .rows = batch.rows, .width = width, .dtype = batch.dtype, .matrices = matrices});
}

FewRowsMatrix matrix_of(const Matrix& m, float* y, const float* add = nullptr) {
  return {.weight = m.weight, .bias = m.bias, .add = add, .y = y, .outputs = m.rows};
}

/// Stores the products with `gate` and `up` after `activate(gate, up, count)`, which writes to its
/// first argument.
template <class Activate>
void store_gated(Products products, const Batch& batch, const Residual& residual,
                 const Matrix& gate_matrix, const Matrix& up_matrix, void* out,
                 const Activate& activate) {
  const int64_t count = int64_t{batch.rows} * gate_matrix.rows;
  std::vector<float> gate(static_cast<size_t>(count)), up(static_cast<size_t>(count));
  const std::array matrices{matrix_of(gate_matrix, gate.data()), matrix_of(up_matrix, up.data())};
  multiply(products, batch, static_cast<const float*>(residual.scaled), residual.width, matrices);
  activate(gate.data(), up.data(), count);
  with_type(batch, [&]<class T>(T) { narrow(gate.data(), static_cast<T*>(out), count); });
}

/// scaled = x weight / RMS(x), the input of the next product.
template <class T>
void normalise(const Batch& batch, const Norm& next, const Residual& residual) {
  const std::vector<float> weight = widened<T>(next.weight, residual.width);
  std::vector<float> rstd(static_cast<size_t>(batch.rows));
  rms_norm({.x = residual.x,
            .weight = weight.data(),
            .y = static_cast<float*>(residual.scaled),
            .rstd = rstd.data(),
            .rows = batch.rows,
            .width = residual.width,
            .eps = next.eps});
}

/// Puts the projections of one row where attention reads them.
template <class T>
struct RowHeads {
  const Projection& p;
  const Cache& cache;
  const int row, position;

  void store_queries(const float* q) const {
    std::vector<float> rotated(static_cast<size_t>(p.head_dim));
    for (int s = 0; s < p.q.rows / p.head_dim; ++s) {
      rotate_head(q + int64_t{s} * p.head_dim, rotated.data());
      const int first = p.q_slots[2 * s], count = p.q_slots[2 * s + 1];
      T* const to = static_cast<T*>(p.q_out) + int64_t{row} * p.q_width;
      for (int i = first; i < first + count; ++i) {
        narrow(rotated.data(), to + int64_t{i} * p.head_dim, p.head_dim);
      }
    }
  }

  void store_keys(const float* k) const {
    std::vector<float> rotated(static_cast<size_t>(p.head_dim));
    for (int s = 0; s < p.key_heads; ++s) {
      rotate_head(k + int64_t{s} * p.head_dim, rotated.data());
      const bool pairs = p.key_heads != p.kv_heads;
      const int head = !pairs ? s : pair_of(s), side = pairs ? side_of(s) : 0;
      narrow(rotated.data(), new_token(head) + side * p.head_dim, p.head_dim);
    }
  }

  void store_values(const float* v) const {
    const int keys = p.key_heads / p.kv_heads * p.head_dim;  // v lies behind the keys
    if (p.halves && p.value_dim == 2 * p.head_dim) {
      for (int s = 0; s < 2 * p.kv_heads; ++s) {
        narrow(v + int64_t{s} * p.head_dim, new_token(pair_of(s)) + keys + side_of(s) * p.head_dim,
               p.head_dim);
      }
      return;
    }
    for (int head = 0; head < p.kv_heads; ++head) {
      narrow(v + int64_t{head} * p.value_dim, new_token(head) + keys, p.value_dim);
    }
  }

  void store_lambda(const float* y) const {
    for (int h = 0; h < p.lambda.rows; ++h) {
      p.lambda_out[int64_t{row} * p.lambda.rows + h] = p.lambda_factor / (1.0f + std::exp(-y[h]));
    }
  }

 private:
  /// The pair and the side (0 or 1) of a sub-head.
  int pair_of(int s) const { return p.halves ? s % p.kv_heads : s / 2; }
  int side_of(int s) const { return p.halves ? s / p.kv_heads : s % 2; }

  T* new_token(int head) const {
    const int32_t page =
        cache.table[int64_t{row} * cache.table_stride + position / cache.page_size];
    return static_cast<T*>(cache.pages) + page * cache.page_stride + head * cache.head_stride +
           position % cache.page_size * cache.token_stride;
  }

  void rotate_head(const float* x, float* y) const {
    const int64_t half = p.rotary_width / 2;
    rotate({.x = x,
            .y = y,
            .cos = p.cos + position * half,
            .sin = p.sin + position * half,
            .tokens = 1,
            .heads = 1,
            .dim = p.head_dim,
            .width = p.rotary_width,
            .table_rows = 1,
            .token_stride = p.head_dim,
            .head_stride = p.head_dim,
            .interleaved = p.interleaved});
  }
};

}  // namespace

void embed(const Batch& batch, const void* embedding, const Norm& next, const Residual& residual) {
  with_type(batch, [&]<class T>(T) {
    for (int row = 0; row < batch.rows; ++row) {
      const T* const from =
          static_cast<const T*>(embedding) + int64_t{batch.tokens[row]} * residual.width;
      float* const x = residual.x + int64_t{row} * residual.width;
      for (int c = 0; c < residual.width; ++c) x[c] = static_cast<float>(from[c]);
    }
    normalise<T>(batch, next, residual);
  });
}

void project(const Batch& batch, const Residual& residual, const Projection& p, const Cache& cache,
             Products products) {
  const auto floats = [&](const Matrix& m) {
    return std::vector<float>(static_cast<size_t>(int64_t{batch.rows} * m.rows));
  };
  std::vector<float> q = floats(p.q), k = floats(p.k), v = floats(p.v), lambda = floats(p.lambda);
  const std::array matrices{matrix_of(p.q, q.data()), matrix_of(p.k, k.data()),
                            matrix_of(p.v, v.data()), matrix_of(p.lambda, lambda.data())};
  multiply(products, batch, static_cast<const float*>(residual.scaled), residual.width,
           std::span(matrices).first(p.lambda.rows > 0 ? 4 : 3));
  with_type(batch, [&]<class T>(T) {
    for (int row = 0; row < batch.rows; ++row) {
      const RowHeads<T> heads{p, cache, row, batch.positions[row]};
      heads.store_queries(q.data() + int64_t{row} * p.q.rows);
      heads.store_keys(k.data() + int64_t{row} * p.k.rows);
      heads.store_values(v.data() + int64_t{row} * p.v.rows);
      heads.store_lambda(lambda.data() + int64_t{row} * p.lambda.rows);
    }
  });
}

void add(const Batch& batch, const void* input, int in, const Matrix& matrix, const Norm& next,
         const Residual& residual, Products products) {
  with_type(batch, [&]<class T>(T) {
    const std::vector<float> wide = widened<T>(input, int64_t{batch.rows} * in);
    const FewRowsMatrix product = matrix_of(matrix, residual.x, residual.x);
    multiply(products, batch, wide.data(), in, {&product, 1});
    normalise<T>(batch, next, residual);
  });
}

void gate(const Batch& batch, const Residual& residual, const Matrix& gate, const Matrix& up,
          void* out, Products products) {
  store_gated(products, batch, residual, gate, up, out,
              [](float* g, const float* u, int64_t count) { swiglu(g, u, g, count); });
}

void poly_gate(const Batch& batch, const Residual& residual, const Matrix& gate, const Matrix& up,
               const PolyNorm& norm, void* out, Products products) {
  PolyGlu poly{.rows = batch.rows, .width = gate.rows, .eps = norm.eps};
  with_type(batch, [&]<class T>(T) {
    const std::vector<float> weight = widened<T>(norm.weight, 3);
    std::copy(weight.begin(), weight.end(), poly.weight);
    poly.bias = widened<T>(norm.bias, 1)[0];
  });
  store_gated(products, batch, residual, gate, up, out, [&](float* g, const float* u, int64_t) {
    poly.gate = poly.y = g;
    poly.up = u;
    poly_glu(poly);
  });
}

void logits(const Batch& batch, const Residual& residual, const Matrix& head, float* out,
            Products products) {
  const FewRowsMatrix product = matrix_of(head, out);
  multiply(products, batch, static_cast<const float*>(residual.scaled), residual.width,
           {&product, 1});
}

}  // namespace diffattn::cpu::token
