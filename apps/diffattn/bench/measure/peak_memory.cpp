// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/measure/peak_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace diffattn::app {
namespace {

/// Returns a field of /proc/self/status in bytes, or -1 if it is absent.
int64_t status_bytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == field + ":" && file >> kib) return kib * 1024;
  }
  return -1;
}

c10::DeviceIndex current_gpu() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
}

/// Returns the bytes that torch has allocated on the current GPU, now and at the peak.
c10::CachingAllocator::Stat gpu_bytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(current_gpu()).allocated_bytes[kAll];
}

}  // namespace

PeakMemory::PeakMemory(bool on_gpu) : on_gpu_(on_gpu) {
  if (on_gpu) {
    c10::getDeviceAllocator(c10::kCUDA)->resetPeakStats(current_gpu());
    start_ = gpu_bytes().current;
    return;
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM to the resident memory of now
  start_ = status_bytes("VmRSS");
}

int64_t PeakMemory::bytes() const {
  const int64_t peak = on_gpu_ ? gpu_bytes().peak : status_bytes("VmHWM");
  return start_ < 0 || peak < 0 ? -1 : std::max<int64_t>(0, peak - start_);
}

}  // namespace diffattn::app
