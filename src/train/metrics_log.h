// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/event_file.h"

namespace diffattn::train {

/// `metrics.jsonl`, one object per line with `step` and what was measured, and a TensorBoard event
/// file beside it.
class MetricsLog {
 public:
  /// Continues the folder's log after `step`: lines of later steps, which a resumed run writes
  /// again, are taken out.
  MetricsLog(const std::string& folder, int64_t step);
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  ~MetricsLog();

  /// Numbers that are not finite become null, which JSON can say.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  std::string path_;
  int fd_ = -1;
  EventFile events_;
};

}  // namespace diffattn::train
