// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "diffattn/parallel/collective.h"

namespace diffattn::parallel {

/// Returns the processes of `inner`, with operations on tensors of every device: those that `inner`
/// does not take go through copies in host memory. Several processes can share a GPU that way,
/// which NCCL refuses. Starting an operation then waits for the tensors that it reads.
std::shared_ptr<Collective> through_host(std::shared_ptr<Collective> inner);

}  // namespace diffattn::parallel
