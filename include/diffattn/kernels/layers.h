// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/view.h"

/// What stands around attention in a layer, one pass over memory each. Float32, host memory, rows
/// one after another unless a stride says otherwise. Results do not depend on the number of
/// threads.
namespace diffattn::cpu {

/// y = weight x rstd, rstd = (mean(x^2) + eps)^-1/2 over a row.
struct RmsNorm {
  const float* x = nullptr;       // [rows, width]
  const float* weight = nullptr;  // [width]; null: ones
  float* y = nullptr;             // [rows, width]
  float* rstd = nullptr;          // [rows]
  int64_t rows = 0, width = 0;
  float eps = 0.0f;
};
void rms_norm(const RmsNorm& params);

struct RmsNormBackward {
  const float* dy = nullptr;      // [rows, width]
  const float* x = nullptr;       // [rows, width]
  const float* weight = nullptr;  // [width]; null: ones
  const float* rstd = nullptr;    // [rows]
  float* dx = nullptr;            // [rows, width]
  float* dweight = nullptr;       // [width]; null: not wanted
  int64_t rows = 0, width = 0;
};
void rms_norm_backward(const RmsNormBackward& params);

/// y = silu(gate) up, element by element.
void swiglu(const float* gate, const float* up, float* y, int64_t count);
void swiglu_backward(const float* dy, const float* gate, const float* up, float* dgate, float* dup,
                     int64_t count);

/// The same where each row of `both` [rows, 2 width] is gate and up, and of `dboth` their
/// gradients.
void swiglu_rows(const float* both, float* y, int64_t rows, int64_t width);
void swiglu_rows_backward(const float* dy, const float* both, float* dboth, int64_t rows,
                          int64_t width);

/// Rotary embedding: the first `width` elements of a head turn in pairs, (i, i + width / 2) or,
/// when interleaved, (2i, 2i + 1), by the angles of their token; the rest is copied.
struct Rotate {
  const float* x = nullptr;    // [tokens, heads, dim], unit last stride
  float* y = nullptr;          // [tokens, heads, dim]
  const float* cos = nullptr;  // [table_rows, width / 2]; token t has row t % table_rows
  const float* sin = nullptr;
  int64_t tokens = 0, heads = 0, dim = 0, width = 0, table_rows = 0;
  int64_t token_stride = 0, head_stride = 0;  // of x
  bool interleaved = false;
  float direction = 1.0f;  // -1: turns back
};
void rotate(const Rotate& params);

}  // namespace diffattn::cpu

/// The same on a GPU, for tensors of storage type `dtype` with sums in float32; enqueued on
/// `stream`, a cudaStream_t. Pointers are 16-byte aligned device memory.
namespace diffattn::cuda {

/// `count` a multiple of 8.
void swiglu(const void* gate, const void* up, void* y, int64_t count, Dtype dtype, void* stream);
void swiglu_backward(const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                     int64_t count, Dtype dtype, void* stream);

/// Pairs (i, i + dim / 2), all of a head: dim a multiple of 8, strides of x multiples of 4.
struct Rotate {
  const void* x = nullptr;     // [tokens, heads, dim], unit last stride
  void* y = nullptr;           // [tokens, heads, dim]
  const float* cos = nullptr;  // [table_rows, dim / 2]; token t has row t % table_rows
  const float* sin = nullptr;
  int64_t tokens = 0, heads = 0, dim = 0, table_rows = 0;
  int64_t token_stride = 0, head_stride = 0;  // of x
  float direction = 1.0f;                     // -1: turns back
  Dtype dtype = Dtype::kFloat32;
};
void rotate(const Rotate& params, void* stream);

}  // namespace diffattn::cuda
