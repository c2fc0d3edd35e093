// SPDX-License-Identifier: Apache-2.0
#include "nn/models/activation_checkpointing.h"

#include <ATen/autocast_mode.h>

#include "diffattn/error.h"
#include "nn/routes/checkpointed_calls.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Run = std::function<void(ResidualStream&, const Tensor&)>;

/// An autocast region for one run. The backward pass runs outside the caller's region, so the
/// second run needs its own. Both runs disable autocast's cache of cast weights: casts of the first
/// run have no graph, and casts of the second run would stay in the cache until the next step,
/// whose weights differ.
class Autocast {
 public:
  Autocast(c10::DeviceType device, bool enabled, torch::ScalarType type)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        was_caching_(at::autocast::is_autocast_cache_enabled()),
        was_type_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, type);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    at::autocast::set_autocast_cache_enabled(was_caching_);
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, was_type_);
  }

 private:
  c10::DeviceType device_;
  bool was_enabled_, was_caching_;
  torch::ScalarType was_type_;
};

/// The function and autocast region of the second run. The graph owns it.
struct SecondRun : torch::CustomClassHolder {
  Run run;
  bool autocast = false;
  torch::ScalarType type = torch::kFloat32;
};

Tensor or_undefined(const std::optional<Tensor>& tensor) { return tensor.value_or(Tensor()); }

std::optional<Tensor> optional(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// Returns the defined tensors of a stream: its sum and perhaps a branch.
variable_list tensors_of(const ResidualStream& stream) {
  if (!stream.pending().defined()) return {stream.sum()};
  return {stream.sum(), stream.pending()};
}

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& sum,
                               const std::optional<Tensor>& branch,
                               const std::optional<Tensor>& context, const Run& run,
                               KeepAttention keep) {
    const auto device = sum.device().type();
    auto second = c10::make_intrusive<SecondRun>();
    second->run = run;
    second->autocast = at::autocast::is_autocast_enabled(device);
    second->type = at::autocast::get_autocast_dtype(device);
    ctx->saved_data["second_run"] = c10::IValue::make_capsule(second);
    const Autocast region(device, second->autocast, second->type);
    const CheckpointedCalls calls(keep);
    ResidualStream stream(sum, or_undefined(branch));
    run(stream, or_undefined(context));
    variable_list saved{sum, or_undefined(branch), or_undefined(context)};
    saved.insert(saved.end(), calls.tensors().begin(), calls.tensors().end());
    ctx->save_for_backward(std::move(saved));
    return tensors_of(stream);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto second =
        c10::static_intrusive_pointer_cast<SecondRun>(ctx->saved_data["second_run"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const auto input = [](const Tensor& tensor) {
      return tensor.defined() ? tensor.detach().requires_grad_(tensor.requires_grad()) : tensor;
    };
    const Tensor sum = saved[0].detach().requires_grad_(true);
    const Tensor branch = input(saved[1]), context = input(saved[2]);
    const torch::AutoGradMode enable(true);
    ResidualStream stream(sum, branch);
    {
      const Autocast region(sum.device().type(), second->autocast, second->type);
      const CheckpointedCalls calls(variable_list(saved.begin() + 3, saved.end()));
      second->run(stream, context);
    }
    torch::autograd::backward(tensors_of(stream), grads);
    const auto gradient = [](const Tensor& tensor) {
      return tensor.defined() ? tensor.grad() : Tensor();
    };
    return {sum.grad(), gradient(branch), gradient(context), Tensor(), Tensor()};
  }
};

}  // namespace

void run_checkpointed(const Run& run, ResidualStream& stream, const Tensor& context,
                      KeepAttention keep) {
  if (!stream.sum().requires_grad()) {
    throw Error(
        "diffattn: activation checkpointing: expected a layer input that requires a gradient, got "
        "one that does not");
  }
  const variable_list results =
      Checkpoint::apply(stream.sum(), optional(stream.pending()), optional(context), run, keep);
  stream = ResidualStream(results.front(), results.size() > 1 ? results.back() : Tensor());
}

}  // namespace diffattn::nn
