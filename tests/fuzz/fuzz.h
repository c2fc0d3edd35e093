// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "diffattn/io/error.h"

// Every target defines LLVMFuzzerTestOneInput. libFuzzer or replay.cpp calls it with one input.

namespace diffattn::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Calls `call` and returns true unless it throws io::Error, the only exception that a bad file may
/// cause. Any other exception ends the process, which the fuzzer reports.
template <typename Call>
bool accepted(Call&& call) {
  try {
    call();
  } catch (const io::Error&) {
    return false;
  }
  return true;
}

/// Ends the process with a message unless `holds` is true.
void expect(bool holds, const char* what);

/// A file in memory, rewritten for every input. Loaders open it by path.
class MemoryFile {
 public:
  MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  void set(std::string_view content);
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

/// A temporary folder in memory (below /dev/shm, if that exists), emptied for every input.
class MemoryFolder {
 public:
  MemoryFolder();
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;
  ~MemoryFolder();

  void clear();
  /// Writes a file. Ignores names that are not bare file names.
  void put(const std::string& name, std::string_view content);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace diffattn::fuzz
