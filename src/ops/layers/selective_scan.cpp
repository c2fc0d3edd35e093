// SPDX-License-Identifier: Apache-2.0
#include "kernels/selective_scan.h"

#include <c10/core/DeviceGuard.h>

#include <array>
#include <string>
#include <utility>

#include "diffattn/kernels/error.h"
#include "ops/glue/view_of.h"
#include "ops/layers/cuda_scan.h"
#include "ops/layers/layers.h"
#include "ops/layers/selective_scan.h"

namespace diffattn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The inputs of a scan as the kernels read them: rows of any stride, on the CPU in the type of the
/// state.
struct ScanTensors {
  Tensor u, delta, a, b, c, d, state, starts;  // the last two may be undefined

  torch::ScalarType wide() const { return a.scalar_type(); }
};

/// Returns x with unit columns and evenly spaced rows over all sequences.
Tensor with_row_stride(const Tensor& x) {
  const bool even = x.size(0) == 1 || x.stride(0) == x.size(1) * x.stride(1);
  return x.stride(-1) == 1 && even ? x : x.contiguous();
}

template <class T>
ScanInputs<T> host_inputs(const ScanTensors& t) {
  return {.u = t.u.const_data_ptr<T>(),
          .delta = t.delta.const_data_ptr<T>(),
          .b = t.b.const_data_ptr<T>(),
          .c = t.c.const_data_ptr<T>(),
          .a = t.a.const_data_ptr<T>(),
          .d = t.d.const_data_ptr<T>(),
          .starts = t.starts.defined() ? t.starts.const_data_ptr<uint8_t>() : nullptr,
          .initial = t.state.defined() ? t.state.const_data_ptr<T>() : nullptr,
          .batch = t.u.size(0),
          .length = t.u.size(1),
          .channels = t.u.size(2),
          .states = t.a.size(1),
          .u_stride = t.u.stride(1),
          .delta_stride = t.delta.stride(1),
          .b_stride = t.b.stride(1),
          .c_stride = t.c.stride(1)};
}

cuda::Scan device_inputs(const ScanTensors& t) {
  return {.u = t.u.const_data_ptr(),
          .delta = t.delta.const_data_ptr(),
          .b = t.b.const_data_ptr(),
          .c = t.c.const_data_ptr(),
          .a = t.a.const_data_ptr<float>(),
          .d = t.d.const_data_ptr<float>(),
          .initial = t.state.defined() ? t.state.const_data_ptr<float>() : nullptr,
          .starts = t.starts.defined() ? t.starts.const_data_ptr<uint8_t>() : nullptr,
          .batch = t.u.size(0),
          .length = t.u.size(1),
          .channels = t.u.size(2),
          .states = t.a.size(1),
          .u_stride = t.u.stride(1),
          .delta_stride = t.delta.stride(1),
          .b_stride = t.b.stride(1),
          .c_stride = t.c.stride(1),
          .dtype = ops::dtype_of(t.u)};
}

/// The gradients of u, delta, b and c, in the type in which the kernel computes them, of a and d.
struct ScanGradients {
  Tensor du, ddelta, da, db, dc, dd;
};

/// Returns y, the last state and, on a GPU with `keeps`, the states for the backward pass.
std::array<Tensor, 3> run_scan(const ScanTensors& t, bool keeps) {
  const int64_t batch = t.u.size(0), length = t.u.size(1), channels = t.u.size(2);
  const Tensor y = torch::empty(t.u.sizes(), t.u.options());
  const Tensor last = torch::empty({batch, channels, t.a.size(1)}, t.a.options());
  Tensor kept;
  if (t.u.is_cuda()) {
    const c10::DeviceGuard guard(t.u.device());
    const int64_t chunks = (length + cuda::kScanChunk - 1) / cuda::kScanChunk;
    if (keeps) kept = torch::empty({batch, chunks, channels, t.a.size(1)}, t.a.options());
    cuda::Scan params = device_inputs(t);
    params.y = y.mutable_data_ptr();
    params.last = last.mutable_data_ptr<float>();
    params.kept = keeps ? kept.mutable_data_ptr<float>() : nullptr;
    ops::cuda_scan()->forward(params, ops::current_stream(t.u.device()));
  } else if (t.wide() == torch::kFloat64) {
    reference::selective_scan(
        {host_inputs<double>(t), y.mutable_data_ptr<double>(), last.mutable_data_ptr<double>()});
  } else {
    cpu::selective_scan(
        {host_inputs<float>(t), y.mutable_data_ptr<float>(), last.mutable_data_ptr<float>()});
  }
  return {y, last, kept};
}

template <class T>
ScanBackward<T> host_backward(const ScanTensors& t, const Tensor& dy, const ScanGradients& g) {
  return {.in = host_inputs<T>(t),
          .dy = dy.const_data_ptr<T>(),
          .du = g.du.mutable_data_ptr<T>(),
          .ddelta = g.ddelta.mutable_data_ptr<T>(),
          .db = g.db.mutable_data_ptr<T>(),
          .dc = g.dc.mutable_data_ptr<T>(),
          .da = g.da.mutable_data_ptr<T>(),
          .dd = g.dd.mutable_data_ptr<T>()};
}

ScanGradients run_scan_backward(const ScanTensors& t, const Tensor& dy, const Tensor& kept) {
  const auto wide = t.a.options();
  ScanGradients g{
      torch::empty(t.u.sizes(), t.u.options()), torch::empty(t.u.sizes(), t.u.options()),
      torch::empty(t.a.sizes(), wide),          torch::empty(t.b.sizes(), wide),
      torch::empty(t.b.sizes(), wide),          torch::empty(t.d.sizes(), wide)};
  if (t.u.is_cuda()) {
    const c10::DeviceGuard guard(t.u.device());
    const auto parts = [&](int64_t count, const Tensor& sum) {
      auto sizes = sum.sizes().vec();
      sizes.insert(sizes.begin(), count);
      return torch::empty(sizes, wide);
    };
    const int64_t blocks = cuda::scan_blocks(t.u.size(2), t.a.size(1));
    g.db = parts(blocks, g.db);
    g.dc = parts(blocks, g.dc);
    g.da = parts(t.u.size(0), g.da);
    g.dd = parts(t.u.size(0), g.dd);
    cuda::Scan params = device_inputs(t);
    params.kept = kept.mutable_data_ptr<float>();
    params.dy = dy.const_data_ptr();
    params.du = g.du.mutable_data_ptr();
    params.ddelta = g.ddelta.mutable_data_ptr();
    params.db = g.db.mutable_data_ptr<float>();
    params.dc = g.dc.mutable_data_ptr<float>();
    params.da = g.da.mutable_data_ptr<float>();
    params.dd = g.dd.mutable_data_ptr<float>();
    ops::cuda_scan()->backward(params, ops::current_stream(t.u.device()));
    for (Tensor* sum : {&g.db, &g.dc, &g.da, &g.dd}) *sum = sum->sum(0);
  } else if (t.wide() == torch::kFloat64) {
    reference::selective_scan_backward(host_backward<double>(t, dy, g));
  } else {
    cpu::selective_scan_backward(host_backward<float>(t, dy, g));
  }
  return g;
}

class SelectiveScan : public torch::autograd::Function<SelectiveScan> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& u, const Tensor& delta,
                               const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d,
                               const std::optional<Tensor>& state,
                               const std::optional<Tensor>& starts) {
    const ScanTensors t{u, delta, a, b, c, d, state.value_or(Tensor()), starts.value_or(Tensor())};
    const auto [y, last, kept] = run_scan(t, /*keeps=*/true);
    ctx->save_for_backward({u, delta, a, b, c, d, t.state, t.starts, kept});
    ctx->mark_non_differentiable({last});
    return {y, last};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    ops::refuse_second_derivative("selective_scan");
    const auto s = ctx->get_saved_variables();
    const ScanTensors t{s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]};
    const ScanGradients g = run_scan_backward(t, grads[0].contiguous(), s[8]);
    return {g.du, g.ddelta, g.da,    g.db.to(t.b.scalar_type()), g.dc.to(t.c.scalar_type()),
            g.dd, Tensor(), Tensor()};
  }
};

void check_scan_inputs(const Tensor& u, const Tensor& delta, const Tensor& a, const Tensor& b,
                       const Tensor& c, const Tensor& d, const ScanOptions& options) {
  const auto refuse = [](const char* name, const std::string& expected, const std::string& got) {
    throw_argument_error(std::string("selective_scan.") + name, expected, got);
  };
  if (u.dim() != 3) refuse("u", "[B, L, E]", c10::str(u.sizes()));
  if (a.dim() != 2 || a.size(0) != u.size(2)) {
    refuse("a", c10::str("[", u.size(2), ", S]"), c10::str(a.sizes()));
  }
  const auto check = [&](const char* name, const Tensor& x, torch::IntArrayRef sizes) {
    if (x.sizes() != sizes) refuse(name, c10::str(sizes), c10::str(x.sizes()));
    if (x.device() == u.device()) return;
    refuse(name, c10::str("a tensor on ", u.device()), c10::str("one on ", x.device()));
  };
  const int64_t batch = u.size(0), length = u.size(1), channels = u.size(2), states = a.size(1);
  check("delta", delta, {batch, length, channels});
  check("a", a, {channels, states});
  check("b", b, {batch, length, states});
  check("c", c, {batch, length, states});
  check("d", d, {channels});
  if (options.state()) check("state", *options.state(), {batch, channels, states});
  if (options.starts()) check("starts", *options.starts(), {batch, length});
  for (const auto& [name, x] :
       {std::pair("delta", &delta), std::pair("b", &b), std::pair("c", &c)}) {
    if (x->scalar_type() == u.scalar_type()) continue;
    refuse(name, c10::str(u.scalar_type(), ", the type of u"), c10::str(x->scalar_type()));
  }
  if (u.is_cpu()) return;
  if (!u.is_cuda() || ops::cuda_scan() == nullptr) {
    refuse("u",
           c10::str("a tensor on the CPU",
                    u.is_cuda() ? ", since this build has no CUDA kernels" : " or an NVIDIA GPU"),
           c10::str("one on ", u.device()));
  }
  if (u.scalar_type() == torch::kFloat64 || !cuda::takes_scan_states(states)) {
    refuse("a", "8, 16, 32 or 64 states and types other than float64 on a GPU",
           c10::str(states, " states and ", u.scalar_type()));
  }
}

}  // namespace

ScanResult selective_scan(const Tensor& u, const Tensor& delta, const Tensor& a, const Tensor& b,
                          const Tensor& c, const Tensor& d, const ScanOptions& options) {
  check_scan_inputs(u, delta, a, b, c, d, options);
  const auto type = u.scalar_type();
  const auto wide = type == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const auto rows = [&](const Tensor& x) { return with_row_stride(x.is_cuda() ? x : x.to(wide)); };
  const auto parameter = [&](const Tensor& x) { return x.to(wide).contiguous(); };
  const Tensor state = options.state() ? parameter(options.state()->detach()) : Tensor();
  const Tensor starts =
      options.starts() ? options.starts()->to(torch::kUInt8).contiguous() : Tensor();
  const Tensor u_rows = rows(u), delta_rows = rows(delta), b_rows = rows(b), c_rows = rows(c);
  const Tensor a_dense = parameter(a), d_dense = parameter(d);
  if (u.numel() == 0) {
    return {torch::zeros_like(u),
            state.defined() ? state
                            : torch::zeros({u.size(0), u.size(2), a.size(1)}, a_dense.options())};
  }
  const bool graph = torch::GradMode::is_enabled() &&
                     (u.requires_grad() || delta.requires_grad() || a.requires_grad() ||
                      b.requires_grad() || c.requires_grad() || d.requires_grad());
  if (!graph) {
    const auto [y, last, kept] =
        run_scan({u_rows, delta_rows, a_dense, b_rows, c_rows, d_dense, state, starts}, false);
    return {y.to(type), last};
  }
  const auto optional = [](const Tensor& x) {
    return x.defined() ? std::optional(x) : std::nullopt;
  };
  const variable_list results = SelectiveScan::apply(u_rows, delta_rows, a_dense, b_rows, c_rows,
                                                     d_dense, optional(state), optional(starts));
  return {results[0].to(type), results[1]};
}

}  // namespace diffattn
