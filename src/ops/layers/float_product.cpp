// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/float_product.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "kernels/few_rows.h"

namespace diffattn::ops {
namespace {

using torch::Tensor;

/// Multiply-adds of products that oneDNN takes. It keeps about 0.5 MiB of code for each shape,
/// which small models with rows of many lengths would notice more than the time.
constexpr int64_t kLeastWork = int64_t{1} << 26;

/// torch's operator linear(x, weight, bias, activation, its numbers, its algorithm) on oneDNN, if
/// this torch has it in the form that we know.
std::optional<c10::OperatorHandle> find_onednn_linear() {
  const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  const bool known =
      op && op->schema().arguments().size() == 6 && op->schema().returns().size() == 1;
  return known ? op : std::nullopt;
}

const std::optional<c10::OperatorHandle>& onednn_linear() {
  static const std::optional<c10::OperatorHandle> op = find_onednn_linear();
  return op;
}

bool is_host_float(const Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == torch::kFloat32;
}

bool prefers_onednn(const Tensor& a, const Tensor& b) {
  return cpu::mkl_uses_half() && is_host_float(a) && is_host_float(b) &&
         a.numel() * b.size(1) >= kLeastWork && at::globalContext().userEnabledMkldnn() &&
         onednn_linear();
}

Tensor onednn_product(const Tensor& a, const Tensor& b) {
  const bool dense = b.is_contiguous() || b.t().is_contiguous();
  torch::jit::Stack stack{a,      dense ? b.t() : b.t().contiguous(),     c10::IValue(),
                          "none", c10::List<std::optional<at::Scalar>>(), ""};
  onednn_linear()->callBoxed(stack);
  return stack.at(0).toTensor();
}

/// oneDNN adds the products of an element one after the other. Parts of a long sum, such as that of
/// a weight's gradient over all tokens, round as little as MKL's.
Tensor multiply_by_onednn(const Tensor& a, const Tensor& b) {
  constexpr int64_t kLongestSum = 512;
  const at::AutoDispatchBelowAutograd no_gradients;
  const int64_t terms = a.size(1), parts = (terms + kLongestSum - 1) / kLongestSum;
  if (parts == 1) return onednn_product(a, b);
  Tensor sum;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = part * terms / parts, end = (part + 1) * terms / parts;
    const Tensor y = onednn_product(a.slice(1, begin, end), b.slice(0, begin, end));
    sum = part == 0 ? y : sum.add_(y);
  }
  return sum;
}

}  // namespace

int64_t few_rows_limit(torch::ScalarType type, int64_t otherwise) {
  if (type != torch::kFloat32 || !cpu::mkl_uses_half()) return otherwise;
  return 512;  // oneDNN, which is as fast, compiles code for each number of rows and keeps it
}

Tensor product(const Tensor& a, const Tensor& b) {
  return prefers_onednn(a, b) ? multiply_by_onednn(a, b) : torch::mm(a, b);
}

void product_into(Tensor& out, const Tensor& a, const Tensor& b) {
  if (prefers_onednn(a, b)) {
    out.copy_(multiply_by_onednn(a, b));
  } else {
    at::mm_out(out, a, b);
  }
}

void add_product(Tensor& sum, const Tensor& a, const Tensor& b) {
  if (prefers_onednn(a, b)) {
    sum += multiply_by_onednn(a, b);
  } else {
    sum.addmm_(a, b);
  }
}

}  // namespace diffattn::ops
