// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/data/packed_rows.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// Returns the length, number and seed of the rows of a run, and those of this process's job.
inline data::RowOptions row_options(const RunConfig& config) {
  data::RowOptions options;
  options.seq_len = config.train.seq_len;
  options.batch_size = config.train.batch_size / config.job.processes;
  options.rank = config.job.rank;
  options.world_size = config.job.processes;
  options.seed = static_cast<uint64_t>(config.seed);
  return options;
}

}  // namespace diffattn::train
