// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace diffattn::cpu {

/// Scratch memory of the calling thread, kept for its next call. A fresh page would cost a page
/// fault, about the time of 100 (query, key) pairs.
class CallMemory {
 public:
  /// Returns memory that is aligned to a cache line and not zeroed; never null, even for 0 bytes.
  /// It is valid until the next call with the same `slot`.
  static char* take(int slot, int64_t bytes) {
    thread_local Block blocks[kSlots];
    Block& block = blocks[slot];
    if (block.data == nullptr || block.bytes < bytes) {
      block.data.reset();
      block.bytes = 0;
      block.data.reset(static_cast<char*>(::operator new(bytes, kAlignment)));
      block.bytes = bytes;
    }
    return block.data.get();
  }

  static constexpr int kScratch = 0, kPacked = 1, kSlabs = 2, kRounded = 3, kRows = 4, kSlots = 5;

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(char* p) const { ::operator delete(p, kAlignment); }
  };
  struct Block {
    std::unique_ptr<char, Delete> data;
    int64_t bytes = 0;
  };
};

}  // namespace diffattn::cpu
