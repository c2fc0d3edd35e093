// SPDX-License-Identifier: Apache-2.0
#include "train/working_copy.h"

#include <unordered_set>

namespace diffattn::train {
namespace {

using torch::Tensor;

constexpr int64_t kAlignment = 8;  // elements, 16 bytes

int64_t aligned(int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

/// Returns the matrix of a linear map or an embedding; undefined for other modules.
Tensor matrix_of(const torch::nn::Module& module) {
  if (const auto* linear = module.as<torch::nn::LinearImpl>()) return linear->weight;
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) return embedding->weight;
  return {};
}

}  // namespace

WorkingCopy::WorkingCopy(const torch::nn::Module& model) {
  std::unordered_set<const void*> seen;
  int64_t total = 0;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const Tensor matrix = matrix_of(*module);
    if (!matrix.defined() || matrix.scalar_type() != torch::kFloat32 ||
        !seen.insert(matrix.unsafeGetTensorImpl()).second) {
      continue;
    }
    entries_.push_back({.parameter = matrix});
    total += aligned(matrix.numel());
  }
  if (entries_.empty()) return;
  const Tensor memory =
      torch::empty({total}, entries_.front().parameter.options().dtype(torch::kBFloat16));
  int64_t begin = 0;
  for (Entry& entry : entries_) {
    entry.copy = memory.narrow(0, begin, entry.parameter.numel()).view(entry.parameter.sizes());
    begin += aligned(entry.parameter.numel());
  }
}

Tensor WorkingCopy::copy_of(const Tensor& parameter) const {
  for (const Entry& entry : entries_) {
    if (entry.parameter.is_same(parameter)) return entry.copy;
  }
  return {};
}

void WorkingCopy::renew() {
  const torch::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    const void* data = entry.parameter.const_data_ptr();
    const auto version = static_cast<int64_t>(entry.parameter._version());
    if (entry.seen_data == data && entry.seen_version == version) continue;
    entry.copy.copy_(entry.parameter);
    entry.seen_data = data;
    entry.seen_version = version;
  }
}

void WorkingCopy::forget() {
  for (Entry& entry : entries_) entry.seen_version = -1;
}

WorkingCopy::InUse::InUse(WorkingCopy& copies) : copies_(copies) {
  copies_.renew();
  for (Entry& entry : copies_.entries_) {
    entry.master = entry.parameter.tensor_data();
    entry.parameter.set_data(entry.copy);
  }
}

WorkingCopy::InUse::~InUse() {
  for (Entry& entry : copies_.entries_) {
    entry.parameter.set_data(entry.master);
    entry.master = Tensor();
  }
}

void WorkingCopy::collect_gradients() {
  const torch::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    Tensor& gradient = entry.parameter.mutable_grad();
    if (!gradient.defined()) continue;
    entry.sum = entry.sum.defined() ? entry.sum.add_(gradient) : gradient.to(torch::kFloat32);
    gradient = Tensor();
  }
}

void WorkingCopy::deliver_gradients() {
  for (Entry& entry : entries_) {
    if (!entry.sum.defined()) continue;
    entry.parameter.mutable_grad() = entry.sum;
    entry.sum = Tensor();
  }
}

}  // namespace diffattn::train
