// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/dispatch/attention_checkpoint.h"
#include "ops/glue/arguments.h"

namespace diffattn::ops {

/// The arguments as the operators get them: under autocast q, k and v in its type.
AttentionArguments after_autocast(AttentionArguments arguments);

/// Does the backward of these tensors read o and o2 of the forward?
bool backward_reads_outputs(const AttentionArguments& arguments);

/// `attention` with gradients, from what an earlier one of the same arguments kept, at least lse1
/// and lse2.
Tensor forward_again(const AttentionArguments& arguments, const KeptAttention& kept);

}  // namespace diffattn::ops
