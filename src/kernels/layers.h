// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/view.h"

/// The elementwise and row operations of a layer around attention, each in one pass over memory.
/// Tensors are float32 in host memory, dense unless a stride is given. Results do not depend on the
/// number of threads.
namespace diffattn::cpu {

/// RMSNorm: y = weight * x * rstd with rstd = 1 / sqrt(mean(x^2) + eps) over a row.
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

/// SwiGLU: y = silu(gate) * up, element by element.
void swiglu(const float* gate, const float* up, float* y, int64_t count);
void swiglu_backward(const float* dy, const float* gate, const float* up, float* dgate, float* dup,
                     int64_t count);

/// SwiGLU on fused rows: each row of `both` [rows, 2 width] is gate, then up. `dboth` has the same
/// layout.
void swiglu_rows(const float* both, float* y, int64_t rows, int64_t width);
void swiglu_rows_backward(const float* dy, const float* both, float* dboth, int64_t rows,
                          int64_t width);

/// Rotary embedding: rotates the first `width` elements of each head in pairs by the angles of the
/// token and copies the rest. Pairs are (i, i + width / 2), or (2i, 2i + 1) if interleaved.
struct Rotate {
  const float* x = nullptr;    // [tokens, heads, dim], unit last stride
  float* y = nullptr;          // [tokens, heads, dim]
  const float* cos = nullptr;  // [table_rows, width / 2]; token t has row t % table_rows
  const float* sin = nullptr;
  int64_t tokens = 0, heads = 0, dim = 0, width = 0, table_rows = 0;
  int64_t token_stride = 0, head_stride = 0;  // of x
  bool interleaved = false;
  float direction = 1.0f;  // -1: inverse rotation
};
void rotate(const Rotate& params);

}  // namespace diffattn::cpu

/// The same operations on a GPU, for tensors of storage type `dtype` with float32 arithmetic. Calls
/// enqueue work on `stream`, a cudaStream_t. Pointers are 16-byte aligned device memory.
namespace diffattn::cuda {

/// SwiGLU; `count` must be a multiple of 8.
void swiglu(const void* gate, const void* up, void* y, int64_t count, Dtype dtype, void* stream);
void swiglu_backward(const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                     int64_t count, Dtype dtype, void* stream);

/// Rotary embedding of whole heads in pairs (i, i + dim / 2). `dim` must be a multiple of 8, the
/// strides of x multiples of 4.
struct Rotate {
  const void* x = nullptr;     // [tokens, heads, dim], unit last stride
  void* y = nullptr;           // [tokens, heads, dim]
  const float* cos = nullptr;  // [table_rows, dim / 2]; token t has row t % table_rows
  const float* sin = nullptr;
  int64_t tokens = 0, heads = 0, dim = 0, table_rows = 0;
  int64_t token_stride = 0, head_stride = 0;  // of x
  float direction = 1.0f;                     // -1: inverse rotation
  Dtype dtype = Dtype::kFloat32;
};
void rotate(const Rotate& params, void* stream);

}  // namespace diffattn::cuda
