// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>

#include "diffattn/kernels/cuda.h"
#include "diffattn/kernels/error.h"

namespace diffattn::testing {
namespace {

/// Page-locking is slow, so blocks are kept for the next case. Tests allocate from several threads.
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

bool available() { return device_capability() >= 80; }
bool takes(const Problem& problem) { return cuda::takes(problem, device_capability()); }

void forward(const ForwardParams& params) {
  const size_t bytes = cuda::forward_workspace_bytes(params);
  const Workspace workspace(bytes);
  cuda::forward(params, bytes == 0 ? nullptr : workspace.data(), nullptr);
  check_cuda(cudaDeviceSynchronize());
}

void backward(const BackwardParams& params) {
  const Workspace workspace(cuda::backward_workspace_bytes(params));
  cuda::backward(params, workspace.data(), nullptr);
  check_cuda(cudaDeviceSynchronize());
}

/// Before main: the list of targets is made when test suites are instantiated.
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
                                     .stats = nullptr,
                                     .stats_backward = nullptr,
                                     .map = nullptr});
  return true;
}();

}  // namespace

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

Workspace::Workspace(size_t bytes) {
  const size_t at_least_one = std::max<size_t>(bytes, 1);
  check_cuda(cudaMalloc(&data_, at_least_one));
  check_cuda(cudaMemset(data_, 0xff, at_least_one));
}

Workspace::~Workspace() { cudaFree(data_); }

/// Says why there is nothing else in this program's output on a machine without a GPU.
TEST(Cuda, HasDevice) {
  if (!available()) GTEST_SKIP() << "skipped: no GPU of compute capability 8.0 or later";
  EXPECT_FALSE(cuda_targets().empty());
}

}  // namespace diffattn::testing
