// SPDX-License-Identifier: Apache-2.0
#include "nn/models/activation_checkpointing.h"

#include <ATen/autocast_mode.h>

#include "nn/attention/checkpointed_calls.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Run = std::function<Tensor(const Tensor&, const Tensor&)>;

/// The backward pass runs outside the caller's autocast region: it is entered again there. Casts of
/// weights are kept in neither run: those of the first have no graph, those of the second would
/// stay until the next region, which would take them for the weights of its own step.
class Autocast {
 public:
  Autocast(c10::DeviceType device, bool enabled, torch::ScalarType type)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        kept_casts_(at::autocast::is_autocast_cache_enabled()),
        was_type_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, type);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    at::autocast::set_autocast_cache_enabled(kept_casts_);
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, was_type_);
  }

 private:
  c10::DeviceType device_;
  bool was_enabled_, kept_casts_;
  torch::ScalarType was_type_;
};

/// What the second run needs, kept by the graph.
struct Again : torch::CustomClassHolder {
  Run run;
  bool autocast = false;
  torch::ScalarType type = torch::kFloat32;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& given,
                        const Run& run, KeepAttention keep) {
    const Tensor context = given.value_or(Tensor());
    const auto device = x.device().type();
    auto again = c10::make_intrusive<Again>();
    again->run = run;
    again->autocast = at::autocast::is_autocast_enabled(device);
    again->type = at::autocast::get_autocast_dtype(device);
    ctx->saved_data["again"] = c10::IValue::make_capsule(again);
    const Autocast region(device, again->autocast, again->type);
    KeptCalls calls(keep);
    Tensor out = run(x, context);
    variable_list saved{x, context};
    saved.insert(saved.end(), calls.tensors().begin(), calls.tensors().end());
    ctx->save_for_backward(std::move(saved));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto again =
        c10::static_intrusive_pointer_cast<Again>(ctx->saved_data["again"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const Tensor x = saved[0].detach().requires_grad_(true);
    Tensor context = saved[1];
    if (context.defined()) context = context.detach().requires_grad_(saved[1].requires_grad());
    const torch::AutoGradMode enable(true);
    Tensor out;
    {
      const Autocast region(x.device().type(), again->autocast, again->type);
      const KeptCalls calls(variable_list(saved.begin() + 2, saved.end()));
      out = again->run(x, context);
    }
    torch::autograd::backward({out}, {grads[0]});
    return {x.grad(), context.defined() ? context.grad() : Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor recomputed(const Run& run, const Tensor& x, const Tensor& context, KeepAttention keep) {
  TORCH_CHECK(x.requires_grad(), "activation checkpointing: expected an input with a gradient");
  return Recompute::apply(x, context.defined() ? std::optional(context) : std::nullopt, run, keep);
}

}  // namespace diffattn::nn
