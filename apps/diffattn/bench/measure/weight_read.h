// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/nn/decoder.h"

namespace diffattn::app {

/// Returns the bytes of the weights that a generated token reads: all except an untied embedding.
int64_t weight_bytes(const nn::CausalLM& model);

/// Returns the seconds that all CPU threads take to read these weights once and do nothing else.
/// No token can be faster.
double read_weights(const nn::CausalLM& model);

}  // namespace diffattn::app
