// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "benchmarks/cuda/random_data.cuh"

namespace diffattn::cuda {

constexpr int kWarmUps = 3;
constexpr int kRepeats = 20;

/// Milliseconds of kRepeats launches between events.
struct Times {
  double median, least, most;
};

/// Enqueues all launches before it waits for the first, so that the device never waits for the
/// host.
template <class Launch>
Times times_of(const Launch& launch) {
  std::vector<cudaEvent_t> events(kWarmUps + kRepeats + 1);
  for (cudaEvent_t& event : events) check(cudaEventCreate(&event));
  check(cudaEventRecord(events.front(), nullptr));
  for (size_t i = 1; i < events.size(); ++i) {
    launch();
    check(cudaEventRecord(events[i], nullptr));
  }
  check(cudaEventSynchronize(events.back()));
  std::vector<float> times;
  for (size_t i = kWarmUps + 1; i < events.size(); ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events[i - 1], events[i]));
    times.push_back(ms);
  }
  for (const cudaEvent_t event : events) check(cudaEventDestroy(event));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

/// Returns an attribute of device 0.
inline double attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}

/// Returns the bytes that the memory moves in a millisecond, from its clock in kHz and bus width.
inline double memory_bytes_per_ms() {
  return 2.0 * attribute(cudaDevAttrMemoryClockRate) * attribute(cudaDevAttrGlobalMemoryBusWidth) /
         8.0;
}

/// Prints the GPU. Returns false, with a line that says so, if there is none.
inline bool print_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: no GPU");
    return false;
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0));
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver));
  check(cudaRuntimeGetVersion(&runtime));
  std::printf("%s, sm_%d%d, driver CUDA %d, runtime CUDA %d; median [min, max] of %d launches\n",
              properties.name, properties.major, properties.minor, driver, runtime, kRepeats);
  return true;
}

/// Random numbers in device memory.
template <class T>
struct DeviceArray {
  T* data = nullptr;

  explicit DeviceArray(int64_t count) {
    check(cudaMalloc(&data, count * sizeof(T)));
    fill(data, count);
  }
  ~DeviceArray() { cudaFree(data); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
};

}  // namespace diffattn::cuda
