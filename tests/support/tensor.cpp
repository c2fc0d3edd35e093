// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace diffattn::testing {
namespace {

constexpr int kNanByte = 0xff;     // repeated, it is a NaN in every element type
constexpr int kCanaryByte = 0xa5;  // repeated, it is a small finite number in every element type
constexpr int64_t kGuardElements = 32;

/// Calls f.operator()<T>() with the C++ type of `dtype`.
template <class F>
void with_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kFloat64: return f.template operator()<double>();
    case Dtype::kFloat32: return f.template operator()<float>();
    case Dtype::kBFloat16: return f.template operator()<BFloat16>();
    case Dtype::kFloat16: return f.template operator()<Float16>();
  }
}

inline double widen(double value) { return value; }
inline double widen(float value) { return value; }
inline double widen(BFloat16 value) { return static_cast<float>(value); }
inline double widen(Float16 value) { return static_cast<float>(value); }

template <class T>
T narrow(double value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

void* allocate_heap(size_t bytes) { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }

}  // namespace

MemorySource& memory_source() {
  static MemorySource source{allocate_heap, std::free};
  return source;
}

Memory::Memory(int64_t bytes) : bytes_(bytes) {
  data_ = static_cast<std::byte*>(
      memory_source().allocate(static_cast<size_t>(std::max<int64_t>(bytes, 1))));
  if (data_ == nullptr) throw std::bad_alloc();
}

Memory::~Memory() {
  if (data_ != nullptr) memory_source().release(data_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return 8;
    case Dtype::kFloat32: return 4;
    case Dtype::kBFloat16:
    case Dtype::kFloat16: return 2;
  }
  return 0;
}

const char* name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return "float64";
    case Dtype::kFloat32: return "float32";
    case Dtype::kBFloat16: return "bfloat16";
    case Dtype::kFloat16: return "float16";
  }
  return "?";
}

double load(Dtype dtype, const void* data, int64_t index) {
  double value = 0.0;
  with_type(dtype, [&]<class T>() { value = widen(static_cast<const T*>(data)[index]); });
  return value;
}

void store(Dtype dtype, void* data, int64_t index, double value) {
  with_type(dtype, [&]<class T>() { static_cast<T*>(data)[index] = narrow<T>(value); });
}

double rounded(Dtype dtype, double value) {
  double memory;
  store(dtype, &memory, 0, value);
  return load(dtype, &memory, 0);
}

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::kBmhd: return "bmhd";
    case Layout::kBhmd: return "bhmd";
    case Layout::kSlice: return "slice";
    case Layout::kGapped: return "gapped";
    case Layout::kReversed: return "reversed";
    case Layout::kBroadcastBatch: return "broadcast_batch";
    case Layout::kBroadcastHead: return "broadcast_head";
    case Layout::kOverlapping: return "overlapping";
  }
  return "?";
}

Tensor::Tensor(Dtype dtype, Dims dims, Layout layout, int64_t offset) : dtype_(dtype), dims_(dims) {
  const auto [batch, seq, heads, width] = dims;
  const auto set_strides = [this](int64_t b, int64_t l, int64_t h) {
    batch_stride_ = b;
    seq_stride_ = l;
    head_stride_ = h;
  };
  const int64_t slice = 3 * heads * width + 5;  // odd, so that rows fall on every alignment
  switch (layout) {
    case Layout::kBmhd: set_strides(seq * heads * width, heads * width, width); break;
    case Layout::kBhmd: set_strides(heads * seq * width, width, seq * width); break;
    case Layout::kSlice: set_strides(seq * slice, slice, width); break;
    case Layout::kGapped:
      set_strides(seq * heads * (width + 3), heads * (width + 3), width + 3);
      break;
    case Layout::kReversed: set_strides(-seq * heads * width, -heads * width, -width); break;
    case Layout::kBroadcastBatch: set_strides(0, heads * width, width); break;
    case Layout::kBroadcastHead: set_strides(seq * width, width, 0); break;
    case Layout::kOverlapping: set_strides(width, width / 2 + 1, 3); break;
  }
  int64_t low = 0, high = width;
  if (dims.count() == 0) {
    high = 0;
  } else {
    for (const auto& [size, stride] : {std::pair{batch, batch_stride_}, std::pair{seq, seq_stride_},
                                       std::pair{heads, head_stride_}}) {
      low += std::min<int64_t>(0, (size - 1) * stride);
      high += std::max<int64_t>(0, (size - 1) * stride);
    }
  }
  origin_ = kGuardElements + offset - low;
  memory_ = Memory((origin_ + high + kGuardElements) * size_of(dtype_));
  make_input();
}

template <class F>
void Tensor::for_each_row(F&& f) const {
  for (int64_t b = 0; b < dims_.batch; ++b) {
    for (int64_t l = 0; l < dims_.seq; ++l) {
      for (int64_t h = 0; h < dims_.heads; ++h) {
        f(origin_ + b * batch_stride_ + l * seq_stride_ + h * head_stride_);
      }
    }
  }
}

void Tensor::make_input() { std::memset(memory_.data(), kNanByte, memory_.bytes()); }

void Tensor::make_output() {
  std::memset(memory_.data(), kCanaryByte, memory_.bytes());
  const int64_t size = size_of(dtype_);
  for_each_row([&](int64_t row) {
    std::memset(memory_.data() + row * size, kNanByte, static_cast<size_t>(dims_.width * size));
  });
}

void Tensor::set(const std::vector<double>& values) {
  const double* from = values.data();
  with_type(dtype_, [&]<class T>() {
    for_each_row([&](int64_t row) {
      T* const to = reinterpret_cast<T*>(memory_.data()) + row;
      for (int64_t w = 0; w < dims_.width; ++w) to[w] = narrow<T>(from[w]);
      from += dims_.width;
    });
  });
}

std::vector<double> Tensor::get() const {
  std::vector<double> values(dims_.count());
  double* to = values.data();
  with_type(dtype_, [&]<class T>() {
    for_each_row([&](int64_t row) {
      const T* const from = reinterpret_cast<const T*>(memory_.data()) + row;
      for (int64_t w = 0; w < dims_.width; ++w) to[w] = widen(from[w]);
      to += dims_.width;
    });
  });
  return values;
}

std::string Tensor::damage() const {
  const int64_t size = size_of(dtype_);
  const auto canary = static_cast<std::byte>(kCanaryByte);
  std::vector<std::byte> around(memory_.data(), memory_.data() + memory_.bytes());
  for_each_row(
      [&](int64_t row) { std::fill_n(around.begin() + row * size, dims_.width * size, canary); });
  // True if every byte equals the next one and the first is a canary.
  if (around.empty() || (around[0] == canary &&
                         std::memcmp(around.data(), around.data() + 1, around.size() - 1) == 0)) {
    return "";
  }
  const auto written =
      std::find_if(around.begin(), around.end(), [&](std::byte byte) { return byte != canary; });
  return "canary overwritten at element " +
         std::to_string((written - around.begin()) / size - origin_) + " relative to the first";
}

View<void> Tensor::view() const { return {data(), batch_stride_, seq_stride_, head_stride_}; }

View<const void> Tensor::input() const {
  return {data(), batch_stride_, seq_stride_, head_stride_};
}

View<void> Tensor::broadcast_view() const {
  return {data(), dims_.batch == 1 ? 0 : batch_stride_, dims_.seq == 1 ? 0 : seq_stride_,
          dims_.heads == 1 ? 0 : head_stride_};
}

}  // namespace diffattn::testing
