// SPDX-License-Identifier: Apache-2.0
//
// Calls the CUDA kernels of a layer's elementwise parts, through torch's device-generic interface.

#include "ops/layers/cuda_layers.h"

#include <c10/core/DeviceGuard.h>

#include "kernels/layers.h"
#include "ops/glue/view_of.h"

namespace diffattn::ops {
namespace {

using torch::Tensor;

void swiglu_on_gpu(const Tensor& gate, const Tensor& up, const Tensor& y) {
  const c10::DeviceGuard guard(gate.device());
  cuda::swiglu(gate.const_data_ptr(), up.const_data_ptr(), y.mutable_data_ptr(), gate.numel(),
               dtype_of(gate), current_stream(gate.device()));
}

void swiglu_backward_on_gpu(const Tensor& dy, const Tensor& gate, const Tensor& up,
                            const Tensor& dgate, const Tensor& dup) {
  const c10::DeviceGuard guard(gate.device());
  cuda::swiglu_backward(dy.const_data_ptr(), gate.const_data_ptr(), up.const_data_ptr(),
                        dgate.mutable_data_ptr(), dup.mutable_data_ptr(), gate.numel(),
                        dtype_of(gate), current_stream(gate.device()));
}

void rotate_on_gpu(const Tensor& heads, const Tensor& cos, const Tensor& sin, double direction,
                   const Tensor& out) {
  const c10::DeviceGuard guard(heads.device());
  cuda::rotate({.x = heads.const_data_ptr(),
                .y = out.mutable_data_ptr(),
                .cos = cos.const_data_ptr<float>(),
                .sin = sin.const_data_ptr<float>(),
                .tokens = heads.numel() / (heads.size(-2) * heads.size(-1)),
                .heads = heads.size(-2),
                .dim = heads.size(-1),
                .table_rows = cos.numel() / (heads.size(-1) / 2),
                .token_stride = heads.stride(-3),
                .head_stride = heads.stride(-2),
                .direction = static_cast<float>(direction),
                .dtype = dtype_of(heads)},
               current_stream(heads.device()));
}

}  // namespace

const CudaLayers* cuda_layers() {
  static const CudaLayers kernels{swiglu_on_gpu, swiglu_backward_on_gpu, rotate_on_gpu};
  return &kernels;
}

}  // namespace diffattn::ops
