// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace diffattn::train {

/// A TensorBoard event file with scalars. Each record is written at once, so a reader of the file
/// sees only whole records, also after a kill.
class EventFile {
 public:
  /// Creates `<folder>/events.out.tfevents.<unix time>.<host>.<process>`. Throws io::Error.
  explicit EventFile(const std::string& folder);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  ~EventFile();

  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  const std::string& path() const { return path_; }

 private:
  void record(const std::string& event);

  std::string path_;
  int fd_ = -1;
};

/// Computes the CRC-32C (Castagnoli) of the bytes.
uint32_t crc32c(std::string_view bytes);

}  // namespace diffattn::train
