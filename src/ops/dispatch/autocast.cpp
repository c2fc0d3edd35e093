// SPDX-License-Identifier: Apache-2.0
//
// Under autocast we cast q, k and v to its type. lambda and the norm weight keep their type, since
// the kernels convert both to float32 anyway.

#include <ATen/autocast_mode.h>

#include "ops/dispatch/attention_checkpoint.h"
#include "ops/dispatch/entry.h"

namespace diffattn::ops {
namespace {

template <at::DeviceType device>
struct Autocast {
  static void cast(ProblemArguments& a) {
    const auto dtype = at::autocast::get_autocast_dtype(device);
    for (Tensor* tensor : {&a.q1, &a.q2, &a.k1, &a.k2}) {
      *tensor = at::autocast::cached_cast(dtype, *tensor, device);
    }
  }
  static void cast(AttentionArguments& a) {
    cast(static_cast<ProblemArguments&>(a));
    a.v = at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), a.v, device);
  }

  /// Turns autocast off while the operator itself runs.
  using Off = c10::impl::ExcludeDispatchKeyGuard;
  static constexpr auto kKey =
      device == at::kCPU ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;

  static ForwardResult forward(AttentionArguments a, SavedOutputs save) {
    const Off off(kKey);
    cast(a);
    return call::attention_forward(a, save);
  }
  static Tensor decode(AttentionArguments a) {
    const Off off(kKey);
    cast(a);
    return call::decode(a);
  }
  static Tensor stats(ProblemArguments a, double sparse_threshold) {
    const Off off(kKey);
    cast(a);
    return call::attention_stats(a, sparse_threshold);
  }
  static Tensor map(ProblemArguments a, const MapGrid& grid) {
    const Off off(kKey);
    cast(a);
    return call::attention_map(a, grid);
  }

  static void register_in(torch::Library& m) {
    m.impl("attention_forward", entry::attention_forward<forward>);
    m.impl("decode", entry::decode<decode>);
    m.impl("attention_stats", entry::attention_stats<stats>);
    m.impl("attention_map", entry::attention_map<map>);
  }
};

}  // namespace

AttentionArguments after_autocast(AttentionArguments a) {
  const auto device = a.q1.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return a;
  if (device == at::kCPU) Autocast<at::kCPU>::cast(a);
  if (device == at::kCUDA) Autocast<at::kCUDA>::cast(a);
  return a;
}

TORCH_LIBRARY_IMPL(diffattn, AutocastCPU, m) { Autocast<at::kCPU>::register_in(m); }
TORCH_LIBRARY_IMPL(diffattn, AutocastCUDA, m) { Autocast<at::kCUDA>::register_in(m); }

}  // namespace diffattn::ops
