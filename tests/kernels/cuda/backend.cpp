// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/backend.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

#include "diffattn/kernels/cuda.h"
#include "diffattn/kernels/error.h"

namespace diffattn::testing {
namespace {

/// Page-locked memory. Page-locking is slow, so the pool keeps released blocks for the next case.
/// It has a lock because tests allocate from several threads.
class PinnedPool {
 public:
  void* allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    size_t rounded = 4096;
    while (rounded < bytes) rounded *= 2;
    if (const auto found = free_.find(rounded); found != free_.end()) {
      void* const memory = found->second;
      free_.erase(found);
      return memory;
    }
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, rounded, cudaHostAllocPortable));
    sizes_[memory] = rounded;
    return memory;
  }
  void release(void* memory) {
    const std::lock_guard lock(mutex_);
    if (memory != nullptr) free_.emplace(sizes_.at(memory), memory);
  }

 private:
  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  std::map<void*, size_t> sizes_;
};

PinnedPool& pool() {
  static PinnedPool* const pinned = new PinnedPool;  // outlives every static test object
  return *pinned;
}

constexpr const char* kName = "cuda";

int& limit() {
  static int capability = [] {
    const char* text = std::getenv("DIFFATTN_TEST_CAPABILITY");
    return text == nullptr ? kNoCapabilityLimit : std::atoi(text);
  }();
  return capability;
}

bool available() { return device_capability() >= 80; }
bool takes(const Problem& problem) { return cuda::takes(problem, device_capability()); }

/// The rounding errors of o and o2 of the last forward that saved them, for its backward.
struct Rests {
  const void* o = nullptr;  // the o of that forward
  Memory o_rest, o2_rest;
  View<void> o_view, o2_view;

  void give(ForwardParams& params) {
    const bool packed = params.cu_seqlens_q != nullptr;
    const int64_t row = params.heads * params.value_dim;
    const int64_t rows = packed ? params.total_q : params.batch * params.seq_q;
    o = params.o.data;
    o_rest = Memory(rows * row + 1);
    o2_rest = Memory(rows * row + 1);
    const auto view = [&](const Memory& memory) {
      return View<void>{memory.data(), packed ? 0 : params.seq_q * row, row, params.value_dim};
    };
    params.o_rest = o_view = view(o_rest);
    params.o2_rest = o2_view = view(o2_rest);
  }
};

Rests& rests() {
  thread_local Rests saved;
  return saved;
}

bool has_16_bits(const Problem& problem) {
  return problem.dtype == Dtype::kBFloat16 || problem.dtype == Dtype::kFloat16;
}

/// Sets every element of a 16-bit [B, M, H, Dv] to NaN.
void poison(const View<void>& view, const ForwardParams& params) {
  if (!view) return;
  const bool packed = params.cu_seqlens_q != nullptr;
  const int64_t batch = packed ? 1 : params.batch;
  const int64_t rows = packed ? params.total_q : params.seq_q;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t h = 0; h < params.heads; ++h) {
        uint16_t* const row = static_cast<uint16_t*>(view.data) + b * view.batch_stride +
                              m * view.seq_stride + h * view.head_stride;
        std::fill_n(row, params.value_dim, uint16_t{0xffff});
      }
    }
  }
}

void forward(const ForwardParams& given) {
  ForwardParams params = given;
  params.max_capability = limit();
  if (params.o && params.o2 && has_16_bits(params)) rests().give(params);
  ++forward_routes()[cuda::forward_route(params)];
  const size_t bytes = cuda::forward_workspace_bytes(params);
  const Workspace workspace(bytes);
  cuda::forward(params, bytes == 0 ? nullptr : workspace.data(), nullptr);
  check_cuda(cudaDeviceSynchronize());
  if (!forward_again_with_known_lse() || !params.lse1 || !has_16_bits(params)) return;
  poison(params.out, params);
  poison(params.o, params);
  cuda::recompute(params, bytes == 0 ? nullptr : workspace.data(), nullptr);
  check_cuda(cudaDeviceSynchronize());
}

void backward(const BackwardParams& given) {
  BackwardParams params = given;
  params.max_capability = limit();
  params.deterministic = !backward_in_any_order();
  if (params.o && params.o.data == rests().o) {
    const auto input = [](const View<void>& view) {
      return View<const void>{view.data, view.batch_stride, view.seq_stride, view.head_stride};
    };
    params.o_rest = input(rests().o_view);
    params.o2_rest = input(rests().o2_view);
  }
  ++backward_routes()[cuda::backward_route(params)];
  const Workspace workspace(cuda::backward_workspace_bytes(params));
  cuda::backward(params, workspace.data(), nullptr);
  check_cuda(cudaDeviceSynchronize());
}

void stats(const StatsParams& params) {
  cuda::stats(params, nullptr);
  check_cuda(cudaDeviceSynchronize());
}

void stats_backward(const StatsBackwardParams& params) {
  const Workspace workspace(cuda::stats_backward_workspace_bytes(params));
  cuda::stats_backward(params, workspace.data(), nullptr);
  check_cuda(cudaDeviceSynchronize());
}

void map(const MapParams& params) {
  const Workspace workspace(cuda::map_workspace_bytes(params));
  cuda::map(params, workspace.data(), nullptr);
  check_cuda(cudaDeviceSynchronize());
}

/// Registers the backend before main, because gtest lists the targets when it instantiates suites.
const bool kRegistered = [] {
  if (!available()) return false;
  memory_source() = {[](size_t bytes) { return pool().allocate(bytes); },
                     [](void* memory) { pool().release(memory); }};
  extra_backends().push_back(Backend{.name = kName,
                                     .description = "kernels for NVIDIA GPUs",
                                     .available = available,
                                     .takes = takes,
                                     .forward = forward,
                                     .backward = backward,
                                     .stats = stats,
                                     .stats_backward = stats_backward,
                                     .map = map});
  return true;
}();

}  // namespace

bool& backward_in_any_order() {
  static bool any_order = false;
  return any_order;
}

bool& forward_again_with_known_lse() {
  static bool known = false;
  return known;
}

std::map<std::string, int64_t>& forward_routes() {
  static std::map<std::string, int64_t> routes;
  return routes;
}

std::map<std::string, int64_t>& backward_routes() {
  static std::map<std::string, int64_t> routes;
  return routes;
}

int device_capability() {
  static const int capability = [] {
    int count = 0, major = 0, minor = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    return 10 * major + minor;
  }();
  return capability;
}

int capability_limit() { return limit(); }

int usable_capability() { return std::min(device_capability(), limit()); }

CapabilityLimit::CapabilityLimit(int capability) : before_(limit()) { limit() = capability; }

CapabilityLimit::~CapabilityLimit() { limit() = before_; }

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw Error(cudaGetErrorString(status));
}

std::vector<Target> cuda_targets() {
  std::vector<Target> list;
  if (!kRegistered) return list;
  for (const Target& target : targets()) {
    if (std::string_view(target.backend->name) == kName) list.push_back(target);
  }
  return list;
}

std::vector<Target> half_targets() {
  std::vector<Target> list = cuda_targets();
  std::erase_if(list, [](const Target& target) { return target.dtype == Dtype::kFloat32; });
  return list;
}

bool has_float_matrix_kernels() {
  constexpr int kNeeded = 215 * 1024;  // most shared memory that a block of any of them takes
  int bytes = 0;
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  return usable_capability() >= 80 && bytes >= kNeeded;
}

std::vector<Target> float_targets() {
  std::vector<Target> list = cuda_targets();
  std::erase_if(list, [](const Target& target) { return target.dtype != Dtype::kFloat32; });
  return list;
}

Workspace::Workspace(size_t bytes) {
  const size_t at_least_one = std::max<size_t>(bytes, 1);
  check_cuda(cudaMalloc(&data_, at_least_one));
  check_cuda(cudaMemset(data_, 0xff, at_least_one));
  check_cuda(cudaDeviceSynchronize());  // a test's own streams do not wait for cudaMemset
}

Workspace::~Workspace() { cudaFree(data_); }

/// Reports the missing device on a machine without a GPU, where all other tests have no instances.
TEST(Cuda, HasDevice) {
  if (!available()) GTEST_SKIP() << "skipped: no GPU of compute capability 8.0 or later";
  EXPECT_FALSE(cuda_targets().empty());
}

}  // namespace diffattn::testing
