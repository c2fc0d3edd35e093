// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/train/evaluate.h"

namespace diffattn::train {

/// Returns `layer.N.lambda` for every differential attention layer whose lambda does not depend on
/// the token, in the order of the model.
Values lambda_values(torch::nn::Module& model);

}  // namespace diffattn::train
