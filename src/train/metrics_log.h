// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/event_file.h"

namespace diffattn::train {

/// Returns the TensorBoard tag of a metric. The part before the slash is its group: "train/loss",
/// "valid/loss", "speed/tokens_per_second", "lambda/layer.3", "attention/focus".
std::string event_tag(const std::string& name);

/// The file `metrics.jsonl`, one object with `step` and metrics per line, and a TensorBoard event
/// file with the same numbers under the tags of event_tag().
class MetricsLog {
 public:
  /// Continues the folder's log after `step`. Removes the lines of later steps, because a resumed
  /// run writes them again.
  MetricsLog(const std::string& folder, int64_t step);
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  ~MetricsLog();

  /// Appends one line. Non-finite numbers become null.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  std::string path_;
  int fd_ = -1;
  EventFile events_;
};

}  // namespace diffattn::train
