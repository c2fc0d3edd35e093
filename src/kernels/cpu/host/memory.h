// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace diffattn::cpu {

/// Memory of the calling thread that is kept for its next call: fresh pages cost a page fault each,
/// about as long as 100 pairs take.
class CallMemory {
 public:
  /// Aligned to a cache line; not zeroed. Valid until the next call with the same `slot`.
  static char* take(int slot, int64_t bytes) {
    thread_local Block blocks[kSlots];
    Block& block = blocks[slot];
    if (block.bytes < bytes) {
      block.data.reset();
      block.bytes = 0;
      block.data.reset(static_cast<char*>(::operator new(bytes, kAlignment)));
      block.bytes = bytes;
    }
    return block.data.get();
  }

  static constexpr int kScratch = 0, kPacked = 1, kSlabs = 2, kSlots = 3;

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
