// SPDX-License-Identifier: Apache-2.0
//
// Visibility words: bit i of the 32-bit word (m, n) is set if row m may see column n + i under the
// sequence bounds and the boolean mask. A tile of scores then needs a few words per row instead of
// one bias per entry.
#pragma once

#include <cstdint>

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"

namespace diffattn::cuda::sm80 {

/// Returns a word with bits [begin, end) set. Both bounds may lie outside [0, 32].
__device__ inline uint32_t bits_between(int begin, int end) {
  const auto from = [](int bit) { return __funnelshift_lc(0u, ~0u, min(max(bit, 0), 32)); };
  return from(begin) & ~from(end);
}

/// Returns the visibility word of row m and columns [n, n + 32) without the mask.
__device__ inline uint32_t visible_word(const Sequence& seq, int m, int n) {
  return bits_between(seq.first_visible(m) - n, (m < seq.seq_q ? seq.end_visible(m) : 0) - n);
}

/// Returns a word whose bit i is set if byte i of the 32 bytes is not 0.
__device__ inline uint32_t nonzero_bytes(const uint32_t (&bytes)[8]) {
  uint32_t word = 0;
#pragma unroll
  for (int k = 3; k >= 0; --k) {
    uint32_t eight = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t x = bytes[2 * k + i];
      const uint32_t high = (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
      // Bytes of `high` are 0 or 128, so the dot product is 128 times the four bits.
      eight = __dp4a(high, i == 0 ? 0x08040201u : 0x80402010u, eight);
    }
    word = word << 8 | eight >> 7;
  }
  return word;
}

/// Turns the boolean mask's 32 bytes at row m, columns [n, n + 32), into a visibility word. Either
/// `copy` stages the bytes in shared memory for `word(slot)`, or `word()` reads global memory.
class MaskBytes {
 public:
  // Bytes of shared memory per word, 16-byte aligned: 32 bytes span up to three 16-byte chunks.
  static constexpr int kSlot = 48;

  __device__ MaskBytes(const HeadMask& mask, int m, int n)
      : mask_(mask),
        m_(m),
        n_(n),
        count_(m < mask.seq.seq_q ? min(max(mask.seq.end_key - n, 0), 32) : 0),
        first_(static_cast<const uint8_t*>(mask.shape.mask.data) + mask.head +
               m * mask.shape.mask.strides.row + n * mask.shape.mask.strides.column) {}

  /// Starts cp.async copies of the aligned chunks that hold the bytes. Reads nothing beyond the
  /// sequence's last column.
  __device__ void copy(uint32_t slot) const {
    if (!along_columns() || count_ == 0) return;
    const int past = past_chunk();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int bytes = min(past + count_ - i * 16, 16);
      if (bytes > 0) ptx::copy_16_partly(slot + i * 16, first_ - past + i * 16, bytes);
    }
  }

  /// Returns the word from a slot that `copy` has filled. A mask with strided columns has no copy
  /// and is read from global memory here.
  __device__ uint32_t word(const char* slot) const {
    if (!along_columns()) return word_by_bytes();
    return word_from(slot + past_chunk());
  }

  /// Returns the word from global memory. Reads aligned 32-bit words if all of them lie within the
  /// row, else single bytes.
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

  /// Returns the word of 32 adjacent bytes, which must have the same address modulo 16 as the bytes
  /// in global memory.
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

  /// Returns the word for any strides. Reads no byte beyond the sequence.
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
  const int count_;  // columns of the 32 that exist in the sequence; 0 for a row beyond it
  const uint8_t* const first_;
};

/// Returns the visibility word of row m and columns [n, n + 32). The mask must not be additive.
__device__ inline uint32_t seen_word(const HeadMask& mask, int m, int n) {
  return mask.shape.mask.kind == MaskKind::kBoolean ? MaskBytes(mask, m, n).word()
                                                    : visible_word(mask.seq, m, n);
}

/// Sets this thread's scores of one row to -inf where `word` has no bit, even if they are NaN. The
/// row is g if r is 0 and g + 8 if r is 1; s holds the row's fragments over 8 kN8 columns.
template <int kN8>
__device__ inline void mask_unseen(float (&s)[kN8][4], int r, uint32_t word) {
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
