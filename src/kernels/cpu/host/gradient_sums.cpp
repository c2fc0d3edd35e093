// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/host/gradient_sums.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace diffattn::cpu {
namespace {

/// Returns the elements of a dense array with these {size, stride} axes; stride 0 is broadcast.
int64_t span_of(std::initializer_list<std::pair<int64_t, int64_t>> axes) {
  int64_t span = 1;
  for (const auto& [size, stride] : axes) {
    if (stride == 0) continue;
    if (size == 0) return 0;
    span += (size - 1) * stride;
  }
  return span;
}

}  // namespace

DlambdaSum::DlambdaSum(const Problem& problem, const ProblemGradients& gradients)
    : problem_(problem),
      out_(gradients.dlambda),
      packed_(problem.cu_seqlens_q != nullptr),
      rows_(packed_ ? problem.cu_seqlens_q[problem.batch] : problem.seq_q),
      parts_(out_ ? (packed_ ? 1 : problem.batch) * rows_ * problem.heads : 0) {}

float* DlambdaSum::row(int64_t b, int64_t l, int64_t h) {
  if (!out_) return nullptr;
  return &parts_[((packed_ ? 0 : b * rows_) + l) * problem_.heads + h];
}

void DlambdaSum::store() const {
  if (!out_) return;
  const int64_t entries = packed_ ? 1 : problem_.batch;
  std::vector<double> sums(span_of({{entries, out_.batch_stride},
                                    {rows_, out_.seq_stride},
                                    {problem_.heads, out_.head_stride}}));
  const float* part = parts_.data();
  for (int64_t b = 0; b < entries; ++b) {
    for (int64_t l = 0; l < rows_; ++l) {
      for (int64_t h = 0; h < problem_.heads; ++h) {
        sums[b * out_.batch_stride + l * out_.seq_stride + h * out_.head_stride] += *part++;
      }
    }
  }
  std::transform(sums.begin(), sums.end(), static_cast<float*>(out_.data),
                 [](double x) { return static_cast<float>(x); });
}

void clear_dmask(const BackwardParams& params) {
  const MaskStrides& stride = params.dmask_strides;
  float* out = static_cast<float*>(params.dmask);
  std::fill_n(out,
              span_of({{params.batch, stride.batch},
                       {params.heads, stride.head},
                       {params.seq_q, stride.row},
                       {params.seq_k, stride.column}}),
              0.0f);
}

}  // namespace diffattn::cpu
