// SPDX-License-Identifier: Apache-2.0
//
// Layout of the backward's workspace, see BackwardWorkspace.

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/sm80/backward/launch.h"
#include "kernels/cuda/sm90/backward/launch.h"

namespace diffattn::cuda {
namespace {

/// Divides one allocation into aligned pieces. If `memory` is null, it only counts bytes.
struct WorkspaceAllocator {
  char* memory;
  size_t used = 0;

  void* allocate(int64_t bytes) {
    constexpr size_t kAlignment = 256;
    void* const block = memory == nullptr ? nullptr : memory + used;
    used += (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    return block;
  }
};

}  // namespace

BackwardWorkspace::BackwardWorkspace(const BackwardParams& params, void* memory) {
  WorkspaceAllocator allocator{static_cast<char*>(memory)};
  const bool packed = params.cu_seqlens_q != nullptr;
  const int64_t rows = packed && params.total_q > 0 ? params.total_q : params.batch * params.seq_q;
  const int64_t heads = params.heads;
  const int64_t width = params.value_dim;
  const int64_t element = params.dtype == Dtype::kFloat32 ? 4 : 2;
  const auto like_out = [&](int64_t element_bytes) {
    return View<void>{allocator.allocate(rows * heads * width * element_bytes),
                      packed ? 0 : params.seq_q * heads * width, heads * width, width};
  };
  const auto row_values = [&] {
    return Rows<float>{static_cast<float*>(allocator.allocate(rows * heads * 4)),
                       packed ? 0 : params.seq_q, 1, rows};
  };
  sm90 = sm90::takes_backward(params);
  if (sm90 && sm90::keeps_dout(params)) {
    const View<const void>& dout = params.dout;
    d_o = {const_cast<void*>(dout.data), dout.batch_stride, dout.seq_stride, dout.head_stride};
  } else {
    d_o = like_out(element);
  }
  if (!params.o || !params.o2) {
    o = like_out(4);
    o2 = like_out(4);
  }
  state = {row_values(), row_values(), row_values(), row_values(), row_values(), row_values()};
  const int64_t unit_heads = sm90 ? sm90::unit_count(params) * heads : 0;
  if (params.dnorm_weight != nullptr) {
    const int64_t parts = sm90 ? unit_heads : kRowBlocks;
    dnorm_parts = static_cast<float*>(allocator.allocate(parts * width * 4));
  }
  dlambda_parts =
      static_cast<float*>(allocator.allocate(dlambda_part_bytes(params, params.dlambda)));
  if (!sm90) dq_sum_bytes = sm80::dq_sum_bytes(params);
  if (dq_sum_bytes != 0) dq_sums = static_cast<float*>(allocator.allocate(dq_sum_bytes));
  if (!sm90 && !sm80::takes_backward(params)) {
    row_factors = {row_values(), row_values(), row_values()};
  }
  if (sm90) {
    const int64_t sum_bytes = 2 * sm90::kUnitRows * params.head_dim * 4;
    units = {.stats = static_cast<char*>(allocator.allocate(unit_heads * sm90::kStatBytes)),
             .dq_sums = static_cast<float*>(allocator.allocate(unit_heads * sum_bytes)),
             .dq_done = static_cast<int*>(allocator.allocate(unit_heads * sm90::kDqWriters * 4)),
             .dlambda_parts = static_cast<float*>(allocator.allocate(unit_heads * 4)),
             .words = allocator.allocate(sm90::mask_bytes(params)),
             .needs_repair = static_cast<int*>(allocator.allocate(4))};
  }
  bytes = allocator.used;
}

}  // namespace diffattn::cuda
