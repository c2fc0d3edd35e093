// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/kernels/half.h"
#include "diffattn/kernels/view.h"

namespace diffattn::testing {

/// The allocator of test memory. A test program for a device that cannot read the heap replaces
/// both functions before it builds the first case.
struct MemorySource {
  void* (*allocate)(size_t bytes);
  void (*release)(void* memory);
};
MemorySource& memory_source();

/// Owns bytes from `memory_source()`.
class Memory {
 public:
  Memory() = default;
  explicit Memory(int64_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

int64_t size_of(Dtype dtype);
const char* name_of(Dtype dtype);
/// Returns the accumulator type: double for kFloat64, else float.
inline Dtype accumulator_of(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
}
double load(Dtype dtype, const void* data, int64_t index);
void store(Dtype dtype, void* data, int64_t index, double value);
/// Returns the value rounded to `dtype`.
double rounded(Dtype dtype, double value);

/// The memory layout of a logical [B, L, H, W] tensor.
enum class Layout : uint8_t {
  kBmhd,            // [B, L, H, W], dense
  kBhmd,            // [B, H, L, W], dense
  kSlice,           // a slice of a wider row, like q in a fused qkv
  kGapped,          // a gap after every row of W
  kReversed,        // all strides negative
  kBroadcastBatch,  // inputs only: batch stride 0
  kBroadcastHead,   // inputs only: head stride 0
  kOverlapping,     // inputs only: rows share elements
};
const char* name_of(Layout layout);

struct Dims {
  int64_t batch = 1;
  int64_t seq = 1;
  int64_t heads = 1;
  int64_t width = 1;

  int64_t count() const { return batch * seq * heads * width; }
};

/// A strided tensor in guarded memory. The memory around an input is NaN, so that a read out of
/// bounds shows in the result. An output starts as NaN, and the memory around it is a canary that
/// `damage()` checks.
class Tensor {
 public:
  Tensor() = default;
  /// `offset`: elements by which the first row is misaligned.
  Tensor(Dtype dtype, Dims dims, Layout layout, int64_t offset = 0);

  void make_input();
  void make_output();
  /// Writes values in logical order. If rows share memory, the last write wins, so read them back.
  void set(const std::vector<double>& values);
  std::vector<double> get() const;
  /// Returns where something outside the elements was written; empty if nothing was.
  std::string damage() const;

  View<void> view() const;
  View<const void> input() const;
  /// Returns `view()` with stride 0 along every dimension of size 1.
  View<void> broadcast_view() const;
  void* data() const { return memory_.data() + origin_ * size_of(dtype_); }
  const Dims& dims() const { return dims_; }
  Dtype dtype() const { return dtype_; }
  explicit operator bool() const { return memory_.data() != nullptr; }

 private:
  template <class F>
  void for_each_row(F&& f) const;

  Dtype dtype_ = Dtype::kFloat32;
  Dims dims_;
  int64_t batch_stride_ = 0, seq_stride_ = 0, head_stride_ = 0;
  int64_t origin_ = 0;  // offset of element (0, 0, 0, 0), in elements
  Memory memory_;
};

}  // namespace diffattn::testing
