// SPDX-License-Identifier: Apache-2.0
//
// The scratch memory of forward and backward. This program replaces operator new, from which the
// kernels get all their scratch memory, with one that counts bytes.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cpu.h"

namespace {

std::atomic<int64_t> live{0}, peak{0};

/// Stores the size in front of every block, in as many bytes as its alignment.
void* counted_allocate(size_t size, size_t alignment) {
  void* block = nullptr;
  if (posix_memalign(&block, alignment, size + alignment) != 0) throw std::bad_alloc();
  char* data = static_cast<char*>(block);
  *reinterpret_cast<size_t*>(data) = size;
  const int64_t now = live += static_cast<int64_t>(size);
  int64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  return data + alignment;
}

void counted_free(void* data, size_t alignment) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - alignment;
  live -= static_cast<int64_t>(*reinterpret_cast<size_t*>(block));
  std::free(block);
}

constexpr size_t kPlain = alignof(std::max_align_t);

}  // namespace

void* operator new(size_t size) { return counted_allocate(size, kPlain); }
void* operator new[](size_t size) { return counted_allocate(size, kPlain); }
void* operator new(size_t size, std::align_val_t alignment) {
  return counted_allocate(size, static_cast<size_t>(alignment));
}
/// std::stable_partition allocates its buffer with this operator. A sanitizer's version would not
/// store the size in front of the block.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return counted_allocate(size, kPlain);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* data) noexcept { counted_free(data, kPlain); }
void operator delete(void* data, const std::nothrow_t&) noexcept { counted_free(data, kPlain); }
void operator delete[](void* data) noexcept { counted_free(data, kPlain); }
void operator delete(void* data, size_t) noexcept { counted_free(data, kPlain); }
void operator delete[](void* data, size_t) noexcept { counted_free(data, kPlain); }
void operator delete(void* data, std::align_val_t alignment) noexcept {
  counted_free(data, static_cast<size_t>(alignment));
}
void operator delete(void* data, size_t, std::align_val_t alignment) noexcept {
  counted_free(data, static_cast<size_t>(alignment));
}

namespace diffattn::testing {
namespace {

/// Tensors [1, N, H, width] of zeros. Zero pages that are only read take no memory.
struct Tensors {
  static constexpr int64_t kSeq = 16384, kHeads = 8, kDim = 64;
  Dtype dtype;
  int64_t bytes = 0;
  std::vector<void*> owned{};

  ~Tensors() {
    for (void* data : owned) std::free(data);
  }
  void* take(int64_t width, int64_t size) {
    const int64_t count = kSeq * kHeads * width;
    bytes += count * size;
    owned.push_back(std::calloc(count, size));
    return owned.back();
  }
  int64_t size() const { return dtype == Dtype::kFloat32 ? 4 : 2; }
  View<void> view(int64_t width) { return {take(width, size()), 0, kHeads * width, width}; }
  View<void> floats() { return {take(1, 4), 0, kHeads, 1}; }
};

View<const void> input(const View<void>& view) {
  return {view.data, view.batch_stride, view.seq_stride, view.head_stride};
}

/// Runs forward and backward of 8 heads of 16384 keys. The window keeps it short and does not
/// change the size of scratch memory.
void run(const Backend& backend, Tensors& tensors) {
  const int64_t d = Tensors::kDim;
  float lambda = 0.5f, dlambda = 0.0f;
  ForwardParams forward;
  forward.dtype = tensors.dtype;
  forward.batch = 1;
  forward.heads = forward.kv_heads = Tensors::kHeads;
  forward.seq_q = forward.seq_k = Tensors::kSeq;
  forward.head_dim = d;
  forward.value_dim = 2 * d;
  forward.window = Window::last(64);
  for (View<const void>* x : {&forward.q1, &forward.q2, &forward.k1, &forward.k2}) {
    *x = input(tensors.view(d));
  }
  forward.v = input(tensors.view(2 * d));
  forward.lambda = {&lambda};
  forward.out = tensors.view(2 * d);
  forward.lse1 = tensors.floats();
  forward.lse2 = tensors.floats();
  backend.forward(forward);
  BackwardParams backward;
  static_cast<Problem&>(backward) = forward;
  backward.v = forward.v;
  backward.dout = input(tensors.view(2 * d));
  backward.lse1 = input(forward.lse1);
  backward.lse2 = input(forward.lse2);
  for (View<void>* x : {&backward.dq1, &backward.dq2, &backward.dk1, &backward.dk2}) {
    *x = tensors.view(d);
  }
  backward.dv = tensors.view(2 * d);
  backward.dlambda = {&dlambda};
  backend.backward(backward);
}

TEST(Memory, ForwardAndBackwardOf16384KeysTakeLessThanThreeTenthsMore) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    Problem problem;
    problem.dtype = dtype;
    const Backend& backend = choose_cpu_backend(problem, "");
    if (std::string_view(backend.name) == "reference") {
      GTEST_SKIP() << "skipped: this machine has none of the fused kernels' instructions";
    }
    cpu::set_thread_count(2);
    Tensors tensors{dtype};
    // A new thread, because scratch memory that a thread keeps for its next call counts too.
    std::thread([&] {
      peak = live.load();
      const int64_t before = live;
      run(backend, tensors);
      const int64_t scratch = peak - before;
      EXPECT_LT(scratch, tensors.bytes * 3 / 10) << backend.name;
      RecordProperty("scratch_mib", static_cast<int>(scratch >> 20));
      std::printf("%s: %lld MiB of scratch memory, %lld MiB of tensors\n", backend.name,
                  static_cast<long long>(scratch >> 20),
                  static_cast<long long>(tensors.bytes >> 20));
    }).join();
    cpu::set_thread_count(0);
  }
}

}  // namespace
}  // namespace diffattn::testing
