// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "diffattn/kernels/params.h"

namespace diffattn {

/// A contiguous copy of a paged KV cache in host memory, for code that does not read pages.
class GatheredPages {
 public:
  explicit GatheredPages(const ForwardParams& paged) : params_(paged) {
    const bool one_key = paged.k2.data == paged.k1.data;
    copy(0, paged.k1, paged.head_dim, params_.k1);
    if (one_key) {
      params_.k2 = params_.k1;
    } else {
      copy(1, paged.k2, paged.head_dim, params_.k2);
    }
    copy(2, paged.v, paged.value_dim, params_.v);
    params_.pages = {};
  }

  /// The same problem on the copy.
  const ForwardParams& params() const { return params_; }

 private:
  /// Copies the rows in use. The others are 0: no row sees them.
  void copy(int index, const View<const void>& from, int64_t width, View<const void>& to) {
    const Problem& p = params_;
    const int64_t size = p.dtype == Dtype::kFloat64 ? 8 : p.dtype == Dtype::kFloat32 ? 4 : 2;
    const int64_t row = p.kv_heads * width;
    std::vector<char>& memory = memory_[index];
    memory.resize(static_cast<size_t>(p.batch * p.seq_k * row * size));
    to = {memory.data(), p.seq_k * row, row, width};
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t n = 0; n < p.key_lengths[b]; ++n) {
        const int64_t page = p.pages.table[b * p.pages.stride + n / p.pages.size];
        for (int64_t g = 0; g < p.kv_heads; ++g) {
          const int64_t source =
              page * from.batch_stride + n % p.pages.size * from.seq_stride + g * from.head_stride;
          std::memcpy(memory.data() + ((b * p.seq_k + n) * row + g * width) * size,
                      static_cast<const char*>(from.data) + source * size,
                      static_cast<size_t>(width * size));
        }
      }
    }
  }

  ForwardParams params_;
  std::vector<char> memory_[3];  // k1, k2, v
};

}  // namespace diffattn
