// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "diffattn/ops.h"

namespace diffattn::testing {

/// A CPU backend that this machine supports. Parameterised tests run once for each.
struct CpuBackend {
  std::string name;
};

inline std::vector<CpuBackend> available_cpu_backends() {
  std::vector<CpuBackend> result;
  for (const BackendInfo& backend : backends()) {
    if (backend.device == "cpu" && backend.available) result.push_back({backend.name});
  }
  return result;
}

inline std::string backend_name(const ::testing::TestParamInfo<CpuBackend>& info) {
  return info.param.name;
}

/// Where a test of layers or models runs: on a CPU backend of this machine, or on its GPU.
struct Place {
  std::string name;  // of the backend, or "cuda"

  torch::Device device() const { return name == "cuda" ? torch::kCUDA : torch::kCPU; }
};

inline std::vector<Place> places() {
  std::vector<Place> result;
  for (const CpuBackend& backend : available_cpu_backends()) result.push_back({backend.name});
  result.push_back({"cuda"});  // AtPlace skips it where there is none
  return result;
}

inline std::string place_name(const ::testing::TestParamInfo<Place>& info) {
  return info.param.name;
}

inline void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

/// A fixture whose tests run at a place.
class AtPlace : public ::testing::Test {
 protected:
  virtual const Place& place() const = 0;
  void SetUp() override {
    if (place().device().is_cuda()) {
      if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: needs a GPU";
    } else {
      setenv("DIFFATTN_BACKEND", place().name.c_str(), 1);
    }
  }
  void TearDown() override { unsetenv("DIFFATTN_BACKEND"); }
};

inline void PrintTo(const CpuBackend& backend, std::ostream* out) { *out << backend.name; }

}  // namespace diffattn::testing
