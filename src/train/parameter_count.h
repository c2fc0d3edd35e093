// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/train/task_data.h"

namespace diffattn::train {

/// Returns the number of parameters of the model that new_task_model() makes. It takes no memory
/// for weights, so the model may be larger than the machine.
int64_t parameter_count(const RunConfig& config, const TaskData& data);

}  // namespace diffattn::train
