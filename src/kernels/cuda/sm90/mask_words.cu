// SPDX-License-Identifier: Apache-2.0
//
// Converts a boolean mask [B, H, M, N] of bytes into the bit words of mask_words.h. The grid's y
// and z are the heads and batch entries of the copy.

#include "kernels/cuda/sm90/mask_words.h"

#include "kernels/cuda/check.h"
#include "kernels/cuda/sm80/visible_words.cuh"
#include "kernels/cuda/sm90/mask_copies.h"

namespace diffattn::cuda::sm90 {
namespace {

constexpr int kUnit = 64;  // rows of a KeyWords entry

/// Each thread makes the word of one row and 32 keys. Neighbouring threads take neighbouring words
/// of the row.
__global__ void __launch_bounds__(kCopyThreads)
    row_words_kernel(const __grid_constant__ Shape shape, RowWords words, int keys, int tiles) {
  const int per_tile = keys / 32, per_row = tiles * per_tile;
  const int64_t index = blockIdx.x * int64_t{kCopyThreads} + threadIdx.x;
  const int word = static_cast<int>(index % per_row);
  const int64_t m = index / per_row;
  if (m >= words.rows) return;
  const int h = blockIdx.y, b = blockIdx.z;
  const HeadMask mask(shape, shape.sequence(b), b, h);
  uint4* const tile = words.data + b * words.batch_stride + h * words.head_stride +
                      static_cast<int64_t>(word / per_tile) * words.rows;
  reinterpret_cast<uint32_t*>(tile + m)[word % per_tile] =
      sm80::MaskBytes(mask, static_cast<int>(m), word * 32).word();
}

/// Each warp transposes 32 rows x 32 keys: lane i reads row i and stores the word of key i.
__global__ void __launch_bounds__(kCopyThreads)
    key_words_kernel(const __grid_constant__ Shape shape, KeyWords words, int halves) {
  const int lane = threadIdx.x % 32, per_half = words.keys / 32;
  const int64_t warp = (blockIdx.x * int64_t{kCopyThreads} + threadIdx.x) / 32;
  const int n0 = static_cast<int>(warp % per_half) * 32;
  const int64_t half = warp / per_half;
  if (half >= halves) return;
  const int h = blockIdx.y, b = blockIdx.z;
  const HeadMask mask(shape, shape.sequence(b), b, h);
  const uint32_t row = sm80::MaskBytes(mask, static_cast<int>(half) * 32 + lane, n0).word();
  uint32_t key = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const uint32_t rows = __ballot_sync(0xffffffffu, (row >> i & 1) != 0);
    if (lane == i) key = rows;
  }
  uint2* const unit =
      words.data + b * words.batch_stride + h * words.head_stride + half / 2 * words.keys;
  reinterpret_cast<uint32_t*>(unit + n0 + lane)[half % 2] = key;
}

}  // namespace

bool takes_mask(const Problem& problem, int64_t value_dim) {
  constexpr int64_t kMostBlocks = 65535;  // grid limit in y and z
  const Mask& mask = problem.mask;
  const bool written_out =
      mask.kind == MaskKind::kAdditive && mask.strides.row == 0 && problem.causal;
  return mask.kind != MaskKind::kNone && !written_out && problem.head_dim == 64 &&
         value_dim == 128 && problem.window == Window{} && problem.key_starts == nullptr &&
         problem.key_lengths == nullptr && problem.cu_seqlens_q == nullptr &&
         problem.batch <= kMostBlocks && problem.heads <= kMostBlocks;
}

RowWords::RowWords(const Problem& problem, int padding, int keys, void* memory) {
  if (problem.mask.kind != MaskKind::kBoolean) return;
  data = static_cast<uint4*>(memory);
  rows = static_cast<int>(ceil_div(problem.seq_q, padding) * padding);
  const int64_t head = ceil_div(problem.seq_k, keys) * rows;
  head_stride = problem.mask.strides.head == 0 ? 0 : head;
  batch_stride = problem.mask.strides.batch == 0 ? 0 : head * mask_heads(problem);
}

size_t RowWords::bytes(const Problem& problem, int keys) const {
  return static_cast<size_t>(mask_batch(problem) * mask_heads(problem) *
                             ceil_div(problem.seq_k, keys) * rows) *
         sizeof(uint4);
}

KeyWords::KeyWords(const Problem& problem, int padding, void* memory) {
  if (problem.mask.kind != MaskKind::kBoolean) return;
  data = static_cast<uint2*>(memory);
  keys = static_cast<int>(ceil_div(problem.seq_k, padding) * padding);
  const int64_t head = ceil_div(problem.seq_q, kUnit) * keys;
  head_stride = problem.mask.strides.head == 0 ? 0 : head;
  batch_stride = problem.mask.strides.batch == 0 ? 0 : head * mask_heads(problem);
}

size_t KeyWords::bytes(const Problem& problem) const {
  return static_cast<size_t>(mask_batch(problem) * mask_heads(problem) *
                             ceil_div(problem.seq_q, kUnit) * keys) *
         sizeof(uint2);
}

void make_words(const RowWords& words, int keys, const Problem& problem, cudaStream_t stream) {
  const int64_t tiles = ceil_div(problem.seq_k, keys);
  const dim3 blocks = blocks_for(problem, words.rows * tiles * (keys / 32));
  row_words_kernel<<<blocks, kCopyThreads, 0, stream>>>(shape_of(problem), words, keys,
                                                        static_cast<int>(tiles));
  check_launch("sm90: words of the mask by rows", problem);
}

void make_words(const KeyWords& words, const Problem& problem, cudaStream_t stream) {
  const int64_t halves = 2 * ceil_div(problem.seq_q, kUnit);
  const dim3 blocks = blocks_for(problem, halves * words.keys);
  key_words_kernel<<<blocks, kCopyThreads, 0, stream>>>(shape_of(problem), words,
                                                        static_cast<int>(halves));
  check_launch("sm90: words of the mask by keys", problem);
}

}  // namespace diffattn::cuda::sm90
