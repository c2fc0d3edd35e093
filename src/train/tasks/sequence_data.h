// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "diffattn/train/task_data.h"

namespace diffattn::train {

/// Returns the generated sequences of Task::kNeedle or Task::kRecall, with the curriculum.
std::unique_ptr<TaskData> generate_sequence_data(const RunConfig& config);

}  // namespace diffattn::train
