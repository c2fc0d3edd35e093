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

/// PolyGLU on rows: y = poly(gate) * up, with poly(t) = w0 n(t^3) + w1 n(t^2) + w2 n(t) + bias and
/// n(z) = z / sqrt(mean(z^2) + eps) over the row. Sums are in double.
struct PolyGlu {
  const float* gate = nullptr;  // [rows, width]
  const float* up = nullptr;    // [rows, width]
  float* y = nullptr;           // [rows, width]; may be gate
  int64_t rows = 0, width = 0;
  float weight[3] = {};  // w0, w1, w2
  float bias = 0.0f, eps = 0.0f;
};
void poly_glu(const PolyGlu& params);

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

/// SwiGLU on rows: y = silu(gate) * up. Rows of gate and up begin `stride` elements apart, so that
/// they may be halves of the rows of one matrix; y is dense. `width` and `stride` must be multiples
/// of 8.
struct Swiglu {
  const void* gate = nullptr;
  const void* up = nullptr;
  void* y = nullptr;  // [rows, width]
  int64_t rows = 0, width = 0, stride = 0;
  Dtype dtype = Dtype::kFloat32;
};
void swiglu(const Swiglu& params, void* stream);

/// The gradients of SwiGLU. dgate and dup have the stride of gate and up.
struct SwigluBackward {
  const void* dy = nullptr;  // [rows, width]
  const void* gate = nullptr;
  const void* up = nullptr;
  void* dgate = nullptr;
  void* dup = nullptr;
  int64_t rows = 0, width = 0, stride = 0;
  Dtype dtype = Dtype::kFloat32;
};
void swiglu_backward(const SwigluBackward& params, void* stream);

/// Some heads of each token: where they come from, and where they go. Strides are in elements.
struct HeadMove {
  const void* x = nullptr;                    // [tokens, heads, dim], unit last stride
  void* y = nullptr;                          // [tokens, heads, dim], unit last stride; may be x
  int64_t token_stride = 0, head_stride = 0;  // of x
  int64_t y_token_stride = 0, y_head_stride = 0;  // of y
  int64_t heads = 0;
  bool rotated = true;  // false: copies the heads
};

/// Moves up to kMaxHeadMoves groups of heads and applies the rotary embedding to whole heads, in
/// pairs (i, i + dim / 2). `dim` must be a multiple of 8, the strides multiples of 4.
inline constexpr int kMaxHeadMoves = 5;
struct MoveHeads {
  HeadMove moves[kMaxHeadMoves] = {};
  int count = 0;               // of moves
  const float* cos = nullptr;  // [table_rows, dim / 2]; token t has row t % table_rows
  const float* sin = nullptr;  // both may be null if no head rotates
  int64_t tokens = 0, dim = 0, table_rows = 1;
  float direction = 1.0f;  // -1: inverse rotation
  Dtype dtype = Dtype::kFloat32;
};
void move_heads(const MoveHeads& params, void* stream);

/// A sum and its norm: h = x + branch rounded to x's type, y = weight h rstd with
/// rstd = 1 / sqrt(mean(h^2) + eps) over a row. `branch` and y have one type: that of x, or
/// bfloat16 if x is float32. `width` must be a multiple of 8, at most 8192.
struct AddRmsNorm {
  const void* x = nullptr;        // [rows, width]
  const void* branch = nullptr;   // [rows, width]; null: h = x, which is not written
  const float* weight = nullptr;  // [width]
  void* h = nullptr;              // [rows, width]
  void* y = nullptr;              // [rows, width]
  float* rstd = nullptr;          // [rows]
  int64_t rows = 0, width = 0;
  float eps = 0.0f;
  Dtype dtype = Dtype::kFloat32;    // of x and h
  Dtype y_dtype = Dtype::kFloat32;  // of branch and y
};
void add_rms_norm(const AddRmsNorm& params, void* stream);

/// Its gradient: dx = dh + the norm's gradient of dy, for x and branch alike. `blocks` thread
/// blocks each write a share of the weight's gradient.
struct AddRmsNormBackward {
  const void* dy = nullptr;       // [rows, width]
  const void* dh = nullptr;       // [rows, width]; null: zeros
  const void* h = nullptr;        // [rows, width]
  const float* weight = nullptr;  // [width]
  const float* rstd = nullptr;    // [rows]
  void* dx = nullptr;             // [rows, width]
  float* dweight = nullptr;       // [width]
  float* shares = nullptr;        // [blocks, width] workspace
  int64_t rows = 0, width = 0, blocks = 0;
  Dtype dtype = Dtype::kFloat32;    // of dh, h and dx
  Dtype y_dtype = Dtype::kFloat32;  // of dy
};
void add_rms_norm_backward(const AddRmsNormBackward& params, void* stream);

/// Returns a good number of blocks for `add_rms_norm_backward` on the current GPU.
int64_t add_rms_norm_blocks(int64_t rows, int64_t width);

/// lambda = exp(q1 . k1) - exp(q2 . k2) + init for vectors [dim] in float32.
struct LambdaVectors {
  const float *q1 = nullptr, *k1 = nullptr, *q2 = nullptr, *k2 = nullptr;
  float* lambda = nullptr;        // [1]
  float* exponentials = nullptr;  // [2]: exp(q1 . k1) and exp(q2 . k2), for the gradients
  int64_t dim = 0;
  float init = 0.0f;
};
void lambda_vectors(const LambdaVectors& params, void* stream);

/// The gradients of q1, k1, q2 and k2: rows of `gradients` [4, dim].
struct LambdaVectorsBackward {
  const float *q1 = nullptr, *k1 = nullptr, *q2 = nullptr, *k2 = nullptr;
  const float* exponentials = nullptr;  // [2]
  const float* dlambda = nullptr;       // [1]
  float* gradients = nullptr;
  int64_t dim = 0;
};
void lambda_vectors_backward(const LambdaVectorsBackward& params, void* stream);

}  // namespace diffattn::cuda
