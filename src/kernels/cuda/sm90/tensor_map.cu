// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/sm90/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include "diffattn/kernels/error.h"

namespace diffattn::cuda::sm90 {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kBlockElements = 64;              // 128 bytes, a swizzled row
constexpr int64_t kStrideUnit = 16;                 // bytes; TMA strides are multiples of it
constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// Returns cuTensorMapEncodeTiled of the loaded driver, or null. The lookup at run time avoids
/// linking against the driver library.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult state = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                                12000, cudaEnableDefault, &state);
    return status == cudaSuccess ? reinterpret_cast<EncodeTiled>(found) : nullptr;
  }();
  return function;
}

/// True if TMA accepts `stride`, in elements, for a dimension of size `steps`.
bool fits(int64_t stride, int64_t steps) {
  if (steps <= 1) return true;
  const int64_t bytes = stride * kElementBytes;
  return bytes > 0 && bytes < kStrideLimit && bytes % kStrideUnit == 0;
}

/// Returns the stride for the map. A dimension of size 1 may have any stride in the tensor, but the
/// driver requires a valid one.
cuuint64_t stride_bytes(int64_t stride, int64_t steps) {
  return static_cast<cuuint64_t>(steps <= 1 ? kStrideUnit : stride * kElementBytes);
}

}  // namespace

bool can_box(const BoxedTensor& tensor) {
  const View<const void>& view = tensor.view;
  return reinterpret_cast<uintptr_t>(view.data) % kStrideUnit == 0 && tensor.rows >= 1 &&
         tensor.width % kBlockElements == 0 && fits(view.head_stride, tensor.heads) &&
         fits(view.seq_stride, tensor.rows) && fits(view.batch_stride, tensor.batch);
}

CUtensorMap tensor_map(Dtype dtype, const BoxedTensor& tensor, int rows, int blocks) {
  const View<const void>& view = tensor.view;
  const auto size = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t sizes[5] = {kBlockElements, size(tensor.heads), size(tensor.rows),
                               size(tensor.width / kBlockElements), size(tensor.batch)};
  const cuuint64_t strides[4] = {
      stride_bytes(view.head_stride, tensor.heads), stride_bytes(view.seq_stride, tensor.rows),
      kBlockElements * kElementBytes, stride_bytes(view.batch_stride, tensor.batch)};
  const cuuint32_t box[5] = {kBlockElements, 1, static_cast<cuuint32_t>(rows),
                             static_cast<cuuint32_t>(blocks), 1};
  const cuuint32_t unit[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const EncodeTiled encode = encode_tiled();
  const CUresult status =
      encode == nullptr
          ? CUDA_ERROR_NOT_FOUND
          : encode(&map,
                   dtype == Dtype::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                   5, const_cast<void*>(view.data), sizes, strides, box, unit,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error("cuTensorMapEncodeTiled failed with status " + std::to_string(status) + " for " +
                std::to_string(tensor.batch) + " x " + std::to_string(tensor.rows) + " rows, " +
                std::to_string(tensor.heads) + " heads, width " + std::to_string(tensor.width));
  }
  return map;
}

}  // namespace diffattn::cuda::sm90
