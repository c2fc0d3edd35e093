// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <torch/types.h>

#include <optional>

namespace diffattn::models {

/// While it exists, parameters of new modules are allocated in `dtype` and not initialised: torch
/// makes the tensors, but sends the operators that would fill them to its Meta backend, which
/// computes nothing. Weights that a file gives anyway then cost neither time nor, before they are
/// read, memory. Inside Python, that backend is in Python and would call itself without end, so
/// parameters are initialised there.
class Uninitialized {
 public:
  explicit Uninitialized(torch::ScalarType dtype) : before_(at::get_default_dtype()) {
    at::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
    if (c10::impl::PyInterpreterHooksRegistry()->Keys().empty())
      meta_.emplace(c10::DispatchKey::Meta);
  }
  ~Uninitialized() { at::set_default_dtype(before_); }
  Uninitialized(const Uninitialized&) = delete;
  Uninitialized& operator=(const Uninitialized&) = delete;

 private:
  caffe2::TypeMeta before_;
  // The guard of an included key leaves its backend behind, so the state is put back as a whole.
  c10::impl::ForceDispatchKeyGuard restore_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> meta_;
};

}  // namespace diffattn::models
