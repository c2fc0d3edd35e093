// SPDX-License-Identifier: Apache-2.0
//
// Which of 32 columns a row may see, one bit each: what boolean masks and the bounds of a sequence
// say, so that a tile of scores needs a few words instead of a number for each entry.
#pragma once

#include <cstdint>

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"

namespace diffattn::cuda::sm80 {

/// Bits [begin, end) of a word; either may lie outside of it.
__device__ inline uint32_t bits_between(int begin, int end) {
  const auto from = [](int bit) { return __funnelshift_lc(0u, ~0u, min(max(bit, 0), 32)); };
  return from(begin) & ~from(end);
}

/// Columns [n, n + 32) of row m, before any mask.
__device__ inline uint32_t visible_word(const Sequence& seq, int m, int n) {
  return bits_between(seq.first_visible(m) - n, (m < seq.seq_q ? seq.end_visible(m) : 0) - n);
}

/// Bit i: is byte i of the 32 other than 0?
__device__ inline uint32_t nonzero_bytes(const uint32_t (&bytes)[8]) {
  uint32_t word = 0;
#pragma unroll
  for (int k = 3; k >= 0; --k) {
    uint32_t eight = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t x = bytes[2 * k + i];
      const uint32_t high = (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
      eight = __dp4a(high, i == 0 ? 0x08040201u : 0x80402010u, eight);  // 128 times the bits
    }
    word = word << 8 | eight >> 7;
  }
  return word;
}

/// The bytes of a boolean mask for 32 columns of a row from n on, and the word they make.
class MaskBytes {
 public:
  static constexpr int kSlot = 48;  // bytes of shared memory, 16-byte aligned, for `copy`

  __device__ MaskBytes(const HeadMask& mask, int m, int n)
      : mask_(mask),
        m_(m),
        n_(n),
        count_(m < mask.seq.seq_q ? min(max(mask.seq.end_key - n, 0), 32) : 0),
        first_(static_cast<const uint8_t*>(mask.shape.mask.data) + mask.head +
               m * mask.shape.mask.strides.row + n * mask.shape.mask.strides.column) {}

  /// Starts copies to a slot, of whole chunks of memory; nothing past the sequence is read.
  __device__ void copy(uint32_t slot) const {
    if (!along_columns() || count_ == 0) return;
    const int past = past_chunk();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int bytes = min(past + count_ - i * 16, 16);
      if (bytes > 0) ptx::copy_16_partly(slot + i * 16, first_ - past + i * 16, bytes);
    }
  }

  /// The word, of what `copy` has brought.
  __device__ uint32_t word(const char* slot) const {
    if (!along_columns()) return word_by_bytes();
    return word_from(slot + past_chunk());
  }

  /// The word, from memory at once: words of it are read where they all belong to the row.
  __device__ uint32_t word() const {
    const int needed = past_chunk() % 4 == 0 ? 32 : 36;
    const bool whole = along_columns() && count_ > 0 && mask_.seq.end_key - n_ >= needed;
    return whole ? word_from(reinterpret_cast<const char*>(first_)) : word_by_bytes();
  }

 private:
  __device__ bool along_columns() const { return mask_.shape.mask.strides.column == 1; }
  __device__ int past_chunk() const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(first_) % 16);
  }

  /// Of 32 bytes, as far from a multiple of 16 as those in memory.
  __device__ uint32_t word_from(const char* bytes) const {
    uint32_t raw[9] = {};
    const int past = past_chunk() % 4;
    if (past_chunk() == 0) {
      const uint4 *const chunks = reinterpret_cast<const uint4*>(bytes), x = chunks[0],
                         y = chunks[1];
      raw[0] = x.x, raw[1] = x.y, raw[2] = x.z, raw[3] = x.w;
      raw[4] = y.x, raw[5] = y.y, raw[6] = y.z, raw[7] = y.w;
    } else {
      const auto* const words = reinterpret_cast<const uint32_t*>(bytes - past);
#pragma unroll
      for (int i = 0; i < 9; ++i) raw[i] = i < 8 || past != 0 ? words[i] : 0u;
    }
    uint32_t joined[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) joined[i] = __funnelshift_r(raw[i], raw[i + 1], past * 8);
    return nonzero_bytes(joined) & visible_word(mask_.seq, m_, n_);
  }

  /// Any strides, and no byte beyond the sequence.
  __device__ uint32_t word_by_bytes() const {
    uint32_t word = 0;
    if (count_ == 0) return word;
    const int64_t stride = mask_.shape.mask.strides.column;
#pragma unroll 8
    for (int i = 0; i < 32; ++i) {
      word |= (first_[min(i, count_ - 1) * stride] != 0 ? 1u : 0u) << i;
    }
    return word & visible_word(mask_.seq, m_, n_);
  }

  const HeadMask& mask_;
  const int m_, n_;
  const int count_;  // columns that exist
  const uint8_t* const first_;
};

/// Columns [n, n + 32) that row m sees, where there are no biases.
__device__ inline uint32_t seen_word(const HeadMask& mask, int m, int n) {
  return mask.shape.mask.kind == MaskKind::kBoolean ? MaskBytes(mask, m, n).word()
                                                    : visible_word(mask.seq, m, n);
}

/// s [8 kN8] of one row and of this thread's columns, -inf where `word` has no bit, which replaces
/// a NaN. r: 0 or 1, of the two rows that a fragment has of a thread.
template <int kN8>
__device__ inline void hide_unseen(float (&s)[kN8][4], int r, uint32_t word) {
  static_assert(kN8 <= 4);
  const uint32_t seen = word >> (threadIdx.x % 4 * 2);
#pragma unroll
  for (int j = 0; j < kN8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = s[j][2 * r + e];
      x = (seen & (1u << (j * 8 + e))) != 0 ? x : -INFINITY;
    }
  }
}

}  // namespace diffattn::cuda::sm80
