// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <span>

#include "diffattn/io/token_file.h"
#include "io/hash.h"

namespace {

using namespace diffattn::io;

constexpr size_t kHashedBytes = 56;  // the header's checksum covers them and follows them

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

/// Mutates the bytes, then usually corrects the header's checksum: random bytes almost never do.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size >= TokenFileHeader::kBytes && seed % 8 != 0) {
    Hash64 hash;
    hash.update(std::as_bytes(std::span(data, kHashedBytes)));
    const uint64_t digest = hash.digest();
    std::memcpy(data + kHashedBytes, &digest, sizeof digest);
  }
  return size;
}
