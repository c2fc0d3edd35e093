// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target on every file of the folders named on the command line. It replaces libFuzzer
// in builds without clang, so that kept inputs are tested everywhere. Like the fuzzer, it ends the
// process when an input takes memory out of proportion to its size.

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

constexpr size_t kAllowance = size_t{64} << 20;
std::atomic<size_t> most_bytes{SIZE_MAX};  // of one allocation, and in use
std::atomic<size_t> live_bytes{0};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

std::vector<fs::path> files_of(int count, char** folders) {
  std::vector<fs::path> files;
  for (int i = 1; i < count; ++i) {
    for (const auto& entry : fs::directory_iterator(folders[i])) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

void* operator new(size_t size) {
  if (size > most_bytes) fail("one allocation out of proportion to the input");
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  if ((live_bytes += ::malloc_usable_size(memory)) > most_bytes) {
    fail("memory in use out of proportion to the input");
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  live_bytes -= ::malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

int main(int count, char** folders) {
  const std::vector<fs::path> files = files_of(count, folders);
  if (files.empty()) fail("no inputs");
  for (const fs::path& file : files) {
    std::fprintf(stderr, "%s\n", file.c_str());
    std::ifstream in(file, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(in), {}};
    most_bytes = live_bytes + 64 * input.size() + kAllowance;
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    most_bytes = SIZE_MAX;
  }
  std::printf("%zu inputs\n", files.size());
  return 0;
}
