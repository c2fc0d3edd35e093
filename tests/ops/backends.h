// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

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

inline void PrintTo(const CpuBackend& backend, std::ostream* out) { *out << backend.name; }

}  // namespace diffattn::testing
