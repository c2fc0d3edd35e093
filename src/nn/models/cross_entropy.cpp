// SPDX-License-Identifier: Apache-2.0
//
// With z = hidden weight^T [T, V], lse = logsumexp(z), label y (one-hot), smoothing e and z-loss c,
// the loss of a row is
//   lse - (1 - e) z_y - (e / V) sum(z) + c lse^2
// and its gradient with respect to z is
//   softmax(z) (1 + 2 c lse) - (1 - e) y - e / V.
// The backward pass only multiplies this gradient by one number. So the forward pass computes
//   dhidden = dz weight,  dweight = dz^T hidden
// chunk by chunk, and the backward pass scales them. This takes three products, as many as with all
// logits in memory, but only one chunk of logits exists at a time. run_chunks zeroes ignored
// rows in hidden and dhidden instead of dz, which saves a pass over the logits.

#include "diffattn/nn/cross_entropy.h"

#include <ATen/autocast_mode.h>

#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "diffattn/error.h"
#include "ops/layers/float_product.h"
#include "ops/layers/loss.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Chunked {
  Tensor loss;     // []: sum over rows
  Tensor dhidden;  // [T, E]: gradient of the sum, if wanted
  Tensor dweight;  // [V, E]: gradient of the sum, if wanted
};

/// Overwrites softmax(z) [t, V] with the gradient of the rows' losses with respect to z.
void softmax_to_gradient(Tensor& softmax, const Tensor& lse, const Tensor& target,
                         const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing();
  if (options.z_loss() != 0.0) softmax.mul_(1.0 + 2.0 * options.z_loss() * lse);
  if (smoothing != 0.0) softmax.sub_(smoothing / static_cast<double>(softmax.size(1)));
  softmax.scatter_add_(1, target, torch::full_like(lse, smoothing - 1.0));
}

/// Returns softmax(z) [t, V] and logsumexp(z) [t, 1]. The latter is the largest logit minus the log
/// of its probability, which is at least 1 / V.
std::pair<Tensor, Tensor> softmax_and_lse(const Tensor& logits) {
  const Tensor softmax = torch::softmax(logits, 1);
  const auto [top, at] = logits.max(1, /*keepdim=*/true);
  return {softmax, top - softmax.gather(1, at).log()};
}

/// Returns the type of logits and sums.
torch::ScalarType wide_type(const Tensor& hidden) {
  return hidden.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

/// Returns the number of rows whose logits, of `element` bytes each, fit into the budget.
int64_t rows_of_chunk(const Tensor& hidden, int64_t vocabulary, int64_t element,
                      const CrossEntropyOptions& options) {
  const int64_t budget =
      options.chunk_bytes() > 0 ? options.chunk_bytes() : default_chunk_bytes(hidden.device());
  return std::max<int64_t>(1, budget / std::max<int64_t>(1, vocabulary * element));
}

/// Returns the number of rows whose float32 logits fit into the budget.
int64_t chunk_rows(const Tensor& hidden, int64_t vocabulary, const CrossEntropyOptions& options) {
  return rows_of_chunk(hidden, vocabulary, int64_t{sizeof(float)}, options);
}

/// Computes loss and gradients chunk by chunk. hidden [T, E], weight [V, E], labels [T].
Chunked run_chunks(const Tensor& hidden, const Tensor& weight, const Tensor& labels, bool gradients,
                   const CrossEntropyOptions& options) {
  const int64_t rows = hidden.size(0), chunk = chunk_rows(hidden, weight.size(0), options);
  const auto wide = wide_type(hidden);
  const auto sums = hidden.options().dtype(wide);
  Chunked result{torch::zeros({}, sums), {}, {}};
  if (gradients) {
    result.dhidden = torch::empty(hidden.sizes(), sums);
    result.dweight = torch::zeros(weight.sizes(), sums);
  }
  const Tensor weight_t = weight.t();
  Tensor dhidden;
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t end = std::min(rows, begin + chunk);
    const Tensor h = hidden.slice(0, begin, end);
    const Tensor label = labels.slice(0, begin, end).unsqueeze(1);
    const Tensor counts = label.ne(options.ignore_index());
    const Tensor target = torch::where(counts, label, 0);
    Tensor logits = torch::matmul(h, weight_t).to(wide);
    Tensor softmax, lse;
    if (gradients) {
      std::tie(softmax, lse) = softmax_and_lse(logits);
    } else {
      lse = torch::logsumexp(logits, 1, /*keepdim=*/true);
    }
    const double smoothing = options.label_smoothing();
    Tensor loss = lse - (1.0 - smoothing) * logits.gather(1, target);
    if (smoothing != 0.0) loss = loss - smoothing * logits.mean(1, /*keepdim=*/true);
    if (options.z_loss() != 0.0) loss = loss + options.z_loss() * lse.square();
    result.loss += torch::where(counts, loss, 0.0).sum();
    if (!gradients) continue;
    logits = Tensor();
    softmax_to_gradient(softmax, lse, target, options);
    const Tensor dlogits = softmax.to(h.scalar_type());
    dhidden = result.dhidden.slice(0, begin, end);
    at::mul_out(dhidden, torch::matmul(dlogits, weight), counts);
    if (h.scalar_type() == wide) {
      result.dweight.addmm_(dlogits.t(), h * counts);
    } else {
      result.dweight += torch::matmul(dlogits.t(), h * counts);
    }
  }
  return result;
}

/// True if a kernel overwrites the logits of a chunk with their gradient in one pass.
bool in_place(const Tensor& hidden, const Tensor& weight) {
  return hidden.device().is_cpu() && hidden.scalar_type() == torch::kFloat32 &&
         weight.scalar_type() == torch::kFloat32 && hidden.numel() > 0 && weight.size(0) > 0;
}

/// Computes the same as `run_chunks` for float32 on the CPU, and multiplies loss and gradients by
/// `factor`.
Chunked run_chunks_in_place(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                            bool gradients, double factor, const CrossEntropyOptions& options) {
  const int64_t rows = hidden.size(0), chunk = chunk_rows(hidden, weight.size(0), options);
  Chunked result;
  if (gradients) result = {{}, torch::empty_like(hidden), torch::empty_like(weight)};
  const Tensor weight_t = weight.t();
  const Tensor memory = torch::empty({std::min(rows, chunk), weight.size(0)}, hidden.options());
  const CrossEntropyRows row_options{.ignore_index = options.ignore_index(),
                                     .label_smoothing = options.label_smoothing(),
                                     .z_loss = options.z_loss(),
                                     .factor = factor};
  double loss = 0.0;
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t end = std::min(rows, begin + chunk);
    const Tensor h = hidden.slice(0, begin, end);
    Tensor logits = memory.slice(0, 0, end - begin);
    ops::product_into(logits, h, weight_t);
    loss += cross_entropy_to_gradient_(logits, labels.slice(0, begin, end), row_options);
    if (!gradients) continue;
    Tensor dhidden = result.dhidden.slice(0, begin, end);
    ops::product_into(dhidden, logits, weight);
    if (begin == 0) {
      ops::product_into(result.dweight, logits.t(), h);
    } else {
      ops::add_product(result.dweight, logits.t(), h);
    }
  }
  result.loss = torch::full({}, loss * factor, hidden.options());
  return result;
}

/// Computes the same as `run_chunks` on a GPU: the logits of a chunk become their gradient in
/// place, in the type of the product. Loss and gradients are multiplied by `inverse_count`.
Chunked run_chunks_on_gpu(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                          bool gradients, const Tensor& inverse_count,
                          const CrossEntropyOptions& options) {
  const int64_t rows = hidden.size(0), classes = weight.size(0);
  const int64_t chunk = rows_of_chunk(hidden, classes, hidden.element_size(), options);
  const bool whole = chunk >= rows;
  const CrossEntropyRows row_options{.ignore_index = options.ignore_index(),
                                     .label_smoothing = options.label_smoothing(),
                                     .z_loss = options.z_loss()};
  Chunked result{torch::zeros({}, hidden.options().dtype(torch::kFloat64)), {}, {}};
  if (gradients) {
    result.dhidden = torch::empty_like(hidden);
    // The sum over chunks is in float32.
    if (!whole)
      result.dweight = torch::zeros(weight.sizes(), weight.options().dtype(torch::kFloat32));
  }
  const Tensor factor = gradients ? inverse_count : Tensor();
  const Tensor memory = torch::empty({std::min(rows, chunk), classes}, hidden.options());
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t end = std::min(rows, begin + chunk);
    const Tensor h = hidden.slice(0, begin, end);
    Tensor logits = memory.slice(0, 0, end - begin);
    at::mm_out(logits, h, weight.t());
    const Tensor loss =
        cross_entropy_rows_(logits, labels.slice(0, begin, end), factor, row_options);
    result.loss += loss.sum(torch::kFloat64);
    if (!gradients) continue;
    Tensor dhidden = result.dhidden.slice(0, begin, end);
    at::mm_out(dhidden, logits, weight);
    const Tensor dweight = torch::mm(logits.t(), h);
    result.dweight = whole ? dweight : result.dweight.add_(dweight);
  }
  result.loss = (result.loss * inverse_count).to(inverse_count.scalar_type());
  return result;
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& weight,
                        const Tensor& labels, const Tensor& inverse_count,
                        const CrossEntropyOptions& options) {
    ctx->saved_data["hidden_type"] = hidden.scalar_type();
    ctx->saved_data["weight_type"] = weight.scalar_type();
    if (in_place(hidden, weight)) {
      const Chunked whole =
          run_chunks_in_place(hidden.contiguous(), weight.contiguous(), labels,
                              /*gradients=*/true, inverse_count.item<double>(), options);
      ctx->save_for_backward({whole.dhidden, whole.dweight});
      return whole.loss;
    }
    if (takes_cross_entropy_rows(hidden, weight.size(0))) {
      const Chunked scaled = run_chunks_on_gpu(hidden.contiguous(), weight.contiguous(), labels,
                                               /*gradients=*/true, inverse_count, options);
      ctx->save_for_backward({scaled.dhidden, scaled.dweight, torch::ones_like(inverse_count)});
      return scaled.loss;
    }
    const Chunked chunked = run_chunks(hidden, weight, labels, /*gradients=*/true, options);
    ctx->save_for_backward({chunked.dhidden, chunked.dweight, inverse_count});
    return chunked.loss * inverse_count;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (torch::GradMode::is_enabled()) {
      throw Error("diffattn: linear_cross_entropy: the fused operator has no second derivative");
    }
    const auto saved = ctx->get_saved_variables();
    const auto hidden_type = ctx->saved_data["hidden_type"].toScalarType();
    const auto weight_type = ctx->saved_data["weight_type"].toScalarType();
    if (saved.size() == 2) {  // run_chunks_in_place has applied inverse_count
      // Autograd may store a returned tensor as the gradient of a leaf, which callers may modify.
      // So we return a copy of dhidden. dweight is too large to copy without need.
      const bool whole = grads[0].item<double>() == 1.0;
      return {saved[0] * grads[0], whole ? saved[1] : saved[1] * grads[0], Tensor(), Tensor(),
              Tensor()};
    }
    const Tensor factor = saved[2] * grads[0];
    return {(saved[0] * factor).to(hidden_type), (saved[1] * factor).to(weight_type), Tensor(),
            Tensor(), Tensor()};
  }
};

void check(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
           const CrossEntropyOptions& options) {
  if (hidden.dim() < 1) throw_argument_error("hidden", "shape [..., E]", "a number");
  if (weight.dim() != 2 || hidden.size(-1) != weight.size(1)) {
    throw_argument_error("weight", c10::str("shape [V, ", hidden.size(-1), "]"),
                         c10::str("shape ", weight.sizes()));
  }
  const auto rows = hidden.sizes().slice(0, hidden.dim() - 1);
  if (labels.sizes() != rows || labels.scalar_type() != torch::kLong) {
    throw_argument_error("labels", c10::str("int64 of shape ", rows),
                         c10::str(labels.scalar_type(), " of shape ", labels.sizes()));
  }
  if (!(options.label_smoothing() >= 0.0 && options.label_smoothing() < 1.0)) {
    throw_argument_error("label_smoothing", "a number in [0, 1)",
                         c10::str(options.label_smoothing()));
  }
}

/// Returns hidden [T, E] and weight in the type of their product: autocast's type inside its
/// regions, else the type of the weight.
std::pair<Tensor, Tensor> product_operands(const Tensor& hidden, const Tensor& weight) {
  const auto device = hidden.device().type();
  const auto type = at::autocast::is_autocast_enabled(device)
                        ? at::autocast::get_autocast_dtype(device)
                        : weight.scalar_type();
  return {hidden.flatten(0, -2).to(type), weight.to(type)};
}

c10::DispatchKeySet autocast_keys(const Tensor& tensor) {
  return c10::DispatchKeySet(
      at::autocast::get_autocast_dispatch_key_from_device_type(tensor.device().type()));
}

}  // namespace

int64_t default_chunk_bytes(torch::Device device) {
  return device.is_cpu() ? int64_t{16} << 20 : int64_t{1} << 30;
}

TokenLoss linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                               const CrossEntropyOptions& options) {
  check(hidden, weight, labels, options);
  const auto [h, w] = product_operands(hidden, weight);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(autocast_keys(hidden));
  const Tensor flat = labels.flatten();
  const Tensor count = flat.ne(options.ignore_index()).sum();
  const Tensor inverse_count = 1.0 / count.clamp_min(1).to(wide_type(h));
  if (torch::GradMode::is_enabled() && (h.requires_grad() || w.requires_grad())) {
    return {LinearCrossEntropy::apply(h, w, flat, inverse_count, options), count};
  }
  if (in_place(h, w)) {
    const torch::NoGradGuard no_grad;
    const double factor = inverse_count.item<double>();
    return {run_chunks_in_place(h, w, flat, /*gradients=*/false, factor, options).loss, count};
  }
  if (takes_cross_entropy_rows(h, w.size(0))) {
    const torch::NoGradGuard no_grad;
    return {run_chunks_on_gpu(h.contiguous(), w.contiguous(), flat, /*gradients=*/false,
                              inverse_count, options)
                .loss,
            count};
  }
  const Chunked chunked = run_chunks(h, w, flat, /*gradients=*/false, options);
  return {chunked.loss * inverse_count, count};
}

int64_t count_correct(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                      const CrossEntropyOptions& options) {
  check(hidden, weight, labels, options);
  const torch::NoGradGuard no_grad;
  const auto [h, w] = product_operands(hidden, weight);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(autocast_keys(hidden));
  const Tensor flat = labels.flatten();
  const int64_t chunk = chunk_rows(h, weight.size(0), options);
  Tensor correct = torch::zeros({}, flat.options());
  for (int64_t begin = 0; begin < h.size(0); begin += chunk) {
    const Tensor best = torch::matmul(h.slice(0, begin, begin + chunk), w.t()).argmax(-1);
    // ignore_index is not a token, so ignored rows never match.
    correct += best.eq(flat.slice(0, begin, begin + chunk)).sum();
  }
  return correct.item<int64_t>();
}

// The operator for Python.
TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, int ignore_index=-100) -> "
      "(Tensor mean, Tensor count)",
      [](const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t ignore_index) {
        const TokenLoss loss = linear_cross_entropy(
            hidden, weight, labels, CrossEntropyOptions().ignore_index(ignore_index));
        return std::tuple(loss.mean, loss.count);
      });
}

}  // namespace diffattn::nn
