// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/backward/rows.cuh"

namespace diffattn::cuda {
namespace {

/// Hands out aligned pieces of one allocation; counts only, when there is none.
struct Cutter {
  char* memory;
  size_t used = 0;

  void* take(int64_t bytes) {
    constexpr size_t kAlignment = 256;
    void* const piece = memory == nullptr ? nullptr : memory + used;
    used += (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
};

}  // namespace

BackwardWorkspace::BackwardWorkspace(const BackwardParams& params, void* memory) {
  Cutter cutter{static_cast<char*>(memory)};
  const int64_t rows = params.batch * params.seq_q, heads = params.heads;
  const int64_t width = params.value_dim;
  const bool packed = params.cu_seqlens_q != nullptr;
  const int64_t element = params.dtype == Dtype::kFloat32 ? 4 : 2;
  const auto like_out = [&](int64_t element_bytes) {
    return View<void>{cutter.take(rows * heads * width * element_bytes),
                      packed ? 0 : params.seq_q * heads * width, heads * width, width};
  };
  const auto row_values = [&] {
    return Rows<float>{static_cast<float*>(cutter.take(rows * heads * 4)),
                       packed ? 0 : params.seq_q, 1, rows};
  };
  d_o = like_out(element);
  if (!params.o || !params.o2) {
    o = like_out(4);
    o2 = like_out(4);
  }
  state = {row_values(), row_values(), row_values(), row_values(), row_values()};
  if (params.dnorm_weight != nullptr) {
    dnorm_parts = static_cast<float*>(cutter.take(kRowBlocks * width * 4));
  }
  bytes = cutter.used;
}

}  // namespace diffattn::cuda
