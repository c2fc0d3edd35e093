// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include "diffattn/kernels/cuda.h"

namespace diffattn::ops {

/// torch's current stream on a device, by its device-generic interface.
inline cuda::Stream current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace diffattn::ops
