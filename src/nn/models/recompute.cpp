// SPDX-License-Identifier: Apache-2.0
#include "nn/models/recompute.h"

#include <ATen/autocast_mode.h>

namespace diffattn::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Run = std::function<Tensor(const Tensor&, const Tensor&)>;

/// The backward pass runs outside the caller's autocast region: it is entered again there.
class Autocast {
 public:
  Autocast(c10::DeviceType device, bool enabled, torch::ScalarType type)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        was_type_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, type);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, was_type_);
  }

 private:
  c10::DeviceType device_;
  bool was_enabled_;
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
                        const Run& run) {
    const Tensor context = given.value_or(Tensor());
    const auto device = x.device().type();
    auto again = c10::make_intrusive<Again>();
    again->run = run;
    again->autocast = at::autocast::is_autocast_enabled(device);
    again->type = at::autocast::get_autocast_dtype(device);
    ctx->saved_data["again"] = c10::IValue::make_capsule(again);
    ctx->save_for_backward({x, context});
    return run(x, context);
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
      out = again->run(x, context);
    }
    torch::autograd::backward({out}, {grads[0]});
    return {x.grad(), context.defined() ? context.grad() : Tensor(), Tensor()};
  }
};

}  // namespace

Tensor recomputed(const Run& run, const Tensor& x, const Tensor& context) {
  TORCH_CHECK(x.requires_grad(), "activation checkpointing: expected an input with a gradient");
  return Recompute::apply(x, context.defined() ? std::optional(context) : std::nullopt, run);
}

}  // namespace diffattn::nn
