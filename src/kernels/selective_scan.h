// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/view.h"

/// The selective scan of Mamba-1. For each sequence and channel, with a state s of S numbers:
///
///   (1) dt_t = softplus(delta_t)
///   (2) s_t  = exp(dt_t A) s_{t-1} + dt_t u_t B_t
///   (3) y_t  = C_t . s_t + D u_t
///
/// and backwards, with g_t the gradient of s_t:
///
///   (4) g_t      = dy_t C_t + exp(dt_{t+1} A) g_{t+1}
///   (5) dC_t     = sum over channels of dy_t s_t;   dB_t = sum over channels of dt_t u_t g_t
///   (6) du_t     = D dy_t + dt_t (g_t . B_t);       dD = sum over tokens of dy_t u_t
///   (7) ddelta_t = sigmoid(delta_t) g_t . (A exp(dt_t A) s_{t-1} + u_t B_t)
///   (8) dA       = sum over tokens of dt_t g_t exp(dt_t A) s_{t-1}
namespace diffattn {

/// Rows are tokens: row b * length + t is token t of sequence b.
template <class T>
struct ScanInputs {
  const T* u = nullptr;      // [rows, channels]
  const T* delta = nullptr;  // [rows, channels]
  const T* b = nullptr;      // [rows, states]
  const T* c = nullptr;      // [rows, states]
  const T* a = nullptr;      // [channels, states], negative, dense
  const T* d = nullptr;      // [channels]
  /// [rows]: not 0 for a token before which the state is 0; null: none.
  const uint8_t* starts = nullptr;
  const T* initial = nullptr;  // [batch, channels, states]; null: zeros
  int64_t batch = 0, length = 0, channels = 0, states = 0;
  int64_t u_stride = 0, delta_stride = 0, b_stride = 0, c_stride = 0;  // between rows
};

template <class T>
struct ScanForward {
  ScanInputs<T> in = {};
  T* y = nullptr;     // [rows, channels], dense
  T* last = nullptr;  // [batch, channels, states]: the state after the last token
};

/// Gradients are dense. The initial state gets none.
template <class T>
struct ScanBackward {
  ScanInputs<T> in = {};
  const T* dy = nullptr;  // [rows, channels], dense
  T *du = nullptr, *ddelta = nullptr;
  T *db = nullptr, *dc = nullptr;
  T *da = nullptr, *dd = nullptr;
};

namespace reference {
void selective_scan(const ScanForward<double>& params);
void selective_scan_backward(const ScanBackward<double>& params);
}  // namespace reference

/// In float32. Results do not depend on the number of threads.
namespace cpu {
void selective_scan(const ScanForward<float>& params);
void selective_scan_backward(const ScanBackward<float>& params);
}  // namespace cpu

/// On a GPU: u, delta, b, c, y, dy, du and ddelta have the storage type `dtype`; a, d, states, da
/// and dd are float32, and so are db and dc. Calls enqueue work on `stream`, a cudaStream_t.
namespace cuda {

/// True for the numbers of states that the kernels take.
constexpr bool takes_scan_states(int64_t states) {
  return states == 8 || states == 16 || states == 32 || states == 64;
}

struct Scan {
  const void *u = nullptr, *delta = nullptr, *b = nullptr, *c = nullptr;
  const float *a = nullptr, *d = nullptr, *initial = nullptr;
  const uint8_t* starts = nullptr;
  int64_t batch = 0, length = 0, channels = 0, states = 0;
  int64_t u_stride = 0, delta_stride = 0, b_stride = 0, c_stride = 0;
  Dtype dtype = Dtype::kFloat32;

  // Forward. With `kept`, the state before every kScanChunk-th token is left there for the backward
  // pass: [batch, chunks, channels, states].
  void* y = nullptr;
  float* last = nullptr;
  float* kept = nullptr;

  // Backward. The caller adds up the parts of db and dc over blocks, those of da and dd over
  // sequences, so that two runs give the same bits.
  const void* dy = nullptr;
  void *du = nullptr, *ddelta = nullptr;
  float *db = nullptr, *dc = nullptr;  // [scan_blocks, rows, states]
  float *da = nullptr, *dd = nullptr;  // [batch, channels, states], [batch, channels]
};

/// Tokens between two states that the forward pass keeps.
inline constexpr int64_t kScanChunk = 16;

/// Threads of a block. A thread has kLaneStates states of a channel.
inline constexpr int64_t kScanThreads = 128, kLaneStates = 4;
/// Returns the number of blocks that share the channels.
constexpr int64_t scan_blocks(int64_t channels, int64_t states) {
  const int64_t each = kScanThreads * kLaneStates / states;
  return (channels + each - 1) / each;
}

void selective_scan(const Scan& params, void* stream);
void selective_scan_backward(const Scan& params, void* stream);

}  // namespace cuda
}  // namespace diffattn
