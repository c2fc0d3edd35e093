// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/loss.h"

#include <vector>

#include "diffattn/kernels/error.h"
#include "kernels/loss.h"
#include "ops/layers/layers.h"

namespace diffattn {

double cross_entropy_to_gradient_(torch::Tensor& logits, const torch::Tensor& labels,
                                  const CrossEntropyRows& options) {
  if (logits.dim() != 2 || !logits.device().is_cpu() || !logits.is_contiguous() ||
      logits.scalar_type() != torch::kFloat32) {
    throw_argument_error("logits", "a contiguous float32 matrix on the CPU",
                         c10::str(logits.options(), " of shape ", logits.sizes()));
  }
  const int64_t rows = logits.size(0), classes = logits.size(1);
  if (labels.dim() != 1 || labels.size(0) != rows || !labels.device().is_cpu() ||
      labels.scalar_type() != torch::kLong) {
    throw_argument_error(
        "labels", c10::str("int64 of shape [", rows, "] on the CPU"),
        c10::str(labels.scalar_type(), " of shape ", labels.sizes(), " on ", labels.device()));
  }
  const torch::Tensor host = labels.contiguous();
  const int64_t* label = host.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    if (label[row] == options.ignore_index || (label[row] >= 0 && label[row] < classes)) continue;
    throw_argument_error("labels",
                         c10::str("numbers in [0, ", classes, ") or ", options.ignore_index),
                         c10::str(label[row], " in row ", row));
  }
  std::vector<double> loss(static_cast<size_t>(rows));
  cpu::cross_entropy({.logits = logits.mutable_data_ptr<float>(),
                      .labels = label,
                      .loss = loss.data(),
                      .rows = rows,
                      .classes = classes,
                      .ignored = options.ignore_index,
                      .smoothing = static_cast<float>(options.label_smoothing),
                      .z_loss = static_cast<float>(options.z_loss),
                      .factor = static_cast<float>(options.factor)});
  double sum = 0.0;
  for (const double one : loss) sum += one;
  return sum;
}

bool takes_cross_entropy_rows(const torch::Tensor& hidden, int64_t classes) {
  return ops::is_for_gpu(hidden) && classes > 0 && classes % 8 == 0 && classes < INT32_MAX;
}

torch::Tensor cross_entropy_rows_(torch::Tensor& logits, const torch::Tensor& labels,
                                  const torch::Tensor& factor, const CrossEntropyRows& options) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() &&
                  takes_cross_entropy_rows(logits, logits.size(1)) && ops::is_aligned(logits),
              "cross_entropy_rows_: logits: expected a contiguous matrix on a GPU, got ",
              logits.options(), " of shape ", logits.sizes());
  const torch::Tensor loss =
      torch::empty({logits.size(0)}, logits.options().dtype(torch::kFloat32));
  const torch::Tensor scale =
      factor.defined() && options.factor != 1.0 ? factor * options.factor : factor;
  ops::cuda_layers()->cross_entropy(logits, labels.contiguous(), options, scale, loss);
  return loss;
}

}  // namespace diffattn
