// SPDX-License-Identifier: Apache-2.0
//
// Calls the CUDA kernels of a layer's elementwise parts, through torch's device-generic interface.

#include "ops/layers/cuda_layers.h"

#include <c10/core/DeviceGuard.h>

#include "kernels/layers.h"
#include "kernels/loss.h"
#include "ops/glue/view_of.h"

namespace diffattn::ops {
namespace {

using torch::Tensor;

/// Returns the distance of the rows of a matrix, or the length of a tensor that is one row.
int64_t row_stride(const Tensor& x) { return x.dim() == 2 ? x.stride(0) : x.numel(); }

void swiglu_on_gpu(const Tensor& gate, const Tensor& up, const Tensor& y) {
  const c10::DeviceGuard guard(gate.device());
  const int64_t rows = gate.dim() == 2 ? gate.size(0) : 1;
  cuda::swiglu({.gate = gate.const_data_ptr(),
                .up = up.const_data_ptr(),
                .y = y.mutable_data_ptr(),
                .rows = rows,
                .width = gate.numel() / rows,
                .stride = row_stride(gate),
                .dtype = dtype_of(gate)},
               current_stream(gate.device()));
}

void swiglu_backward_on_gpu(const Tensor& dy, const Tensor& gate, const Tensor& up,
                            const Tensor& dgate, const Tensor& dup) {
  const c10::DeviceGuard guard(gate.device());
  const int64_t rows = gate.dim() == 2 ? gate.size(0) : 1;
  cuda::swiglu_backward({.dy = dy.const_data_ptr(),
                         .gate = gate.const_data_ptr(),
                         .up = up.const_data_ptr(),
                         .dgate = dgate.mutable_data_ptr(),
                         .dup = dup.mutable_data_ptr(),
                         .rows = rows,
                         .width = gate.numel() / rows,
                         .stride = row_stride(gate),
                         .dtype = dtype_of(gate)},
                        current_stream(gate.device()));
}

void move_heads_on_gpu(at::TensorList heads, at::TensorList out, int64_t rotated, const Tensor& cos,
                       const Tensor& sin, double direction) {
  TORCH_CHECK(heads.size() <= cuda::kMaxHeadMoves && heads.size() == out.size(),
              "move_heads: expected up to ", cuda::kMaxHeadMoves, " groups of heads");
  const Tensor& first = heads.front();
  const c10::DeviceGuard guard(first.device());
  cuda::MoveHeads params{.count = static_cast<int>(heads.size()),
                         .tokens = first.numel() / (first.size(-2) * first.size(-1)),
                         .dim = first.size(-1),
                         .direction = static_cast<float>(direction),
                         .dtype = dtype_of(first)};
  for (size_t i = 0; i < heads.size(); ++i) {
    params.moves[i] = {.x = heads[i].const_data_ptr(),
                       .y = out[i].mutable_data_ptr(),
                       .token_stride = heads[i].stride(-3),
                       .head_stride = heads[i].stride(-2),
                       .y_token_stride = out[i].stride(-3),
                       .y_head_stride = out[i].stride(-2),
                       .heads = heads[i].size(-2),
                       .rotated = static_cast<int64_t>(i) < rotated};
  }
  if (rotated > 0) {
    params.cos = cos.const_data_ptr<float>();
    params.sin = sin.const_data_ptr<float>();
    params.table_rows = cos.numel() / (params.dim / 2);
  }
  cuda::move_heads(params, current_stream(first.device()));
}

void add_rms_norm_on_gpu(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps,
                         const Tensor& h, const Tensor& y, const Tensor& rstd) {
  const c10::DeviceGuard guard(x.device());
  cuda::add_rms_norm({.x = x.const_data_ptr(),
                      .branch = branch.defined() ? branch.const_data_ptr() : nullptr,
                      .weight = weight.const_data_ptr<float>(),
                      .h = h.defined() ? h.mutable_data_ptr() : nullptr,
                      .y = y.mutable_data_ptr(),
                      .rstd = rstd.mutable_data_ptr<float>(),
                      .rows = rstd.numel(),
                      .width = weight.numel(),
                      .eps = static_cast<float>(eps),
                      .dtype = dtype_of(x),
                      .y_dtype = dtype_of(y)},
                     current_stream(x.device()));
}

Tensor add_rms_norm_backward_on_gpu(const Tensor& dy, const Tensor& dh, const Tensor& h,
                                    const Tensor& weight, const Tensor& rstd, const Tensor& dx) {
  const c10::DeviceGuard guard(h.device());
  const int64_t rows = rstd.numel(), width = weight.numel();
  const int64_t blocks = cuda::add_rms_norm_blocks(rows, width);
  const Tensor shares = torch::empty({blocks, width}, weight.options());
  const Tensor dweight = torch::empty({width}, weight.options());
  cuda::add_rms_norm_backward({.dy = dy.const_data_ptr(),
                               .dh = dh.defined() ? dh.const_data_ptr() : nullptr,
                               .h = h.const_data_ptr(),
                               .weight = weight.const_data_ptr<float>(),
                               .rstd = rstd.const_data_ptr<float>(),
                               .dx = dx.mutable_data_ptr(),
                               .dweight = dweight.mutable_data_ptr<float>(),
                               .shares = shares.mutable_data_ptr<float>(),
                               .rows = rows,
                               .width = width,
                               .blocks = blocks,
                               .dtype = dtype_of(h),
                               .y_dtype = dtype_of(dy)},
                              current_stream(h.device()));
  return dweight;
}

void cross_entropy_on_gpu(const Tensor& logits, const Tensor& labels,
                          const CrossEntropyRows& options, const Tensor& factor,
                          const Tensor& loss) {
  const c10::DeviceGuard guard(logits.device());
  cuda::cross_entropy({.logits = logits.mutable_data_ptr(),
                       .labels = labels.const_data_ptr<int64_t>(),
                       .loss = loss.mutable_data_ptr<float>(),
                       .factor = factor.defined() ? factor.const_data_ptr<float>() : nullptr,
                       .rows = logits.size(0),
                       .classes = logits.size(1),
                       .ignored = options.ignore_index,
                       .smoothing = static_cast<float>(options.label_smoothing),
                       .z_loss = static_cast<float>(options.z_loss),
                       .dtype = dtype_of(logits)},
                      current_stream(logits.device()));
}

std::pair<Tensor, Tensor> lambda_vectors_on_gpu(const std::array<Tensor, 4>& v, double init) {
  const c10::DeviceGuard guard(v[0].device());
  const Tensor lambda = torch::empty({}, v[0].options());
  const Tensor exponentials = torch::empty({2}, v[0].options());
  cuda::lambda_vectors({.q1 = v[0].const_data_ptr<float>(),
                        .k1 = v[1].const_data_ptr<float>(),
                        .q2 = v[2].const_data_ptr<float>(),
                        .k2 = v[3].const_data_ptr<float>(),
                        .lambda = lambda.mutable_data_ptr<float>(),
                        .exponentials = exponentials.mutable_data_ptr<float>(),
                        .dim = v[0].numel(),
                        .init = static_cast<float>(init)},
                       current_stream(v[0].device()));
  return {lambda, exponentials};
}

Tensor lambda_vectors_backward_on_gpu(const std::array<Tensor, 4>& v, const Tensor& exponentials,
                                      const Tensor& dlambda) {
  const c10::DeviceGuard guard(v[0].device());
  const Tensor gradients = torch::empty({4, v[0].numel()}, v[0].options());
  cuda::lambda_vectors_backward({.q1 = v[0].const_data_ptr<float>(),
                                 .k1 = v[1].const_data_ptr<float>(),
                                 .q2 = v[2].const_data_ptr<float>(),
                                 .k2 = v[3].const_data_ptr<float>(),
                                 .exponentials = exponentials.const_data_ptr<float>(),
                                 .dlambda = dlambda.const_data_ptr<float>(),
                                 .gradients = gradients.mutable_data_ptr<float>(),
                                 .dim = v[0].numel()},
                                current_stream(v[0].device()));
  return gradients;
}

}  // namespace

const CudaLayers* cuda_layers() {
  static const CudaLayers kernels{.swiglu = swiglu_on_gpu,
                                  .swiglu_backward = swiglu_backward_on_gpu,
                                  .move_heads = move_heads_on_gpu,
                                  .add_rms_norm = add_rms_norm_on_gpu,
                                  .add_rms_norm_backward = add_rms_norm_backward_on_gpu,
                                  .cross_entropy = cross_entropy_on_gpu,
                                  .lambda_vectors = lambda_vectors_on_gpu,
                                  .lambda_vectors_backward = lambda_vectors_backward_on_gpu,
                                  .adamw = cuda::adamw};
  return &kernels;
}

}  // namespace diffattn::ops
