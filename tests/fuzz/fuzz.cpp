// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace diffattn::fuzz {

namespace fs = std::filesystem;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

MemoryFile::MemoryFile()
    : fd_(::memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
  expect(fd_ >= 0, "memfd_create succeeds");
}

MemoryFile::~MemoryFile() { ::close(fd_); }

void MemoryFile::set(std::string_view content) {
  expect(::ftruncate(fd_, 0) == 0, "ftruncate succeeds");
  expect(::pwrite(fd_, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()),
         "pwrite succeeds");
}

MemoryFolder::MemoryFolder() {
  std::error_code ignored;
  const fs::path parent =
      fs::is_directory("/dev/shm", ignored) ? fs::path("/dev/shm") : fs::temp_directory_path();
  path_ = (parent / "diffattn_fuzz_XXXXXX").string();
  expect(::mkdtemp(path_.data()) != nullptr, "mkdtemp succeeds");
}

MemoryFolder::~MemoryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void MemoryFolder::clear() {
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    fs::remove_all(entry.path());
  }
}

void MemoryFolder::put(const std::string& name, std::string_view content) {
  if (name.empty() || name.size() > 200 || name.find_first_of(std::string("/\0", 2)) != name.npos) {
    return;
  }
  std::ofstream(path_ + "/" + name, std::ios::binary)
      .write(content.data(), static_cast<std::streamsize>(content.size()));
}

}  // namespace diffattn::fuzz
