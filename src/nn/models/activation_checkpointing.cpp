// SPDX-License-Identifier: Apache-2.0
#include "nn/models/activation_checkpointing.h"

#include <ATen/autocast_mode.h>

#include "nn/routes/checkpointed_calls.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Run = std::function<Tensor(const Tensor&, const Tensor&)>;

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

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& given,
                        const Run& run, KeepAttention keep) {
    const Tensor context = given.value_or(Tensor());
    const auto device = x.device().type();
    auto second = c10::make_intrusive<SecondRun>();
    second->run = run;
    second->autocast = at::autocast::is_autocast_enabled(device);
    second->type = at::autocast::get_autocast_dtype(device);
    ctx->saved_data["second_run"] = c10::IValue::make_capsule(second);
    const Autocast region(device, second->autocast, second->type);
    const CheckpointedCalls calls(keep);
    Tensor out = run(x, context);
    variable_list saved{x, context};
    saved.insert(saved.end(), calls.tensors().begin(), calls.tensors().end());
    ctx->save_for_backward(std::move(saved));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto second =
        c10::static_intrusive_pointer_cast<SecondRun>(ctx->saved_data["second_run"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const Tensor x = saved[0].detach().requires_grad_(true);
    Tensor context = saved[1];
    if (context.defined()) context = context.detach().requires_grad_(saved[1].requires_grad());
    const torch::AutoGradMode enable(true);
    Tensor out;
    {
      const Autocast region(x.device().type(), second->autocast, second->type);
      const CheckpointedCalls calls(variable_list(saved.begin() + 2, saved.end()));
      out = second->run(x, context);
    }
    torch::autograd::backward({out}, {grads[0]});
    return {x.grad(), context.defined() ? context.grad() : Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor run_checkpointed(const Run& run, const Tensor& x, const Tensor& context,
                        KeepAttention keep) {
  TORCH_CHECK(x.requires_grad(),
              "activation checkpointing: expected a layer input that requires a gradient");
  return Checkpoint::apply(x, context.defined() ? std::optional(context) : std::nullopt, run, keep);
}

}  // namespace diffattn::nn
