// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace diffattn::train {

/// Rounds every matrix of the layers to integers of `bits` bits times one scale per output channel:
/// w = s round(w / s), s = max |w| / (2^(bits - 1) - 1). Embeddings, the head,
/// norms, lambda and the decay rates of Mamba stay as they are. Returns the number of matrices.
int64_t round_weights(torch::nn::Module& model, int64_t bits);

}  // namespace diffattn::train
