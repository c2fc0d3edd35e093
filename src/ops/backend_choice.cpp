// SPDX-License-Identifier: Apache-2.0
#include "ops/backend_choice.h"

#include <cstdlib>
#include <mutex>

#include "diffattn/kernels/error.h"
#include "diffattn/ops.h"
#include "ops/arguments.h"
#include "ops/view_of.h"

namespace diffattn {
namespace {

struct Limit {
  std::mutex mutex;
  std::string name;
};

Limit& limit() {
  static Limit instance;
  static std::once_flag once;
  std::call_once(once, [] {
    if (const char* value = std::getenv("DIFFATTN_BACKEND")) instance.name = value;
  });
  return instance;
}

}  // namespace

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> list;
  for (const Backend& backend : cpu_backends()) {
    list.push_back({backend.name, "cpu", backend.description, backend.available()});
  }
  const char* composed = "ATen operators, maps in memory";
  list.push_back({ops::kComposed, "cpu", composed, true});
  list.push_back({ops::kComposed, "cuda", composed, torch::cuda::is_available()});
  return list;
}

std::string backend_for(torch::Device device, torch::ScalarType dtype) {
  if (!device.is_cpu()) return ops::kComposed;
  Problem problem;
  problem.dtype = ops::dtype_of(torch::empty({0}, dtype));
  problem.batch = problem.heads = problem.kv_heads = 1;
  problem.seq_q = problem.seq_k = 1024;
  problem.head_dim = 64;
  problem.value_dim = 128;
  const Backend* backend = ops::cpu_backend_or_composed(problem);
  return backend == nullptr ? ops::kComposed : backend->name;
}

void limit_backend(const std::string& name) {
  if (!name.empty() && name != ops::kComposed) choose_cpu_backend({}, name);  // throws if unknown
  const std::lock_guard lock(limit().mutex);
  limit().name = name;
}

namespace ops {

std::string backend_limit() {
  const std::lock_guard lock(limit().mutex);
  return limit().name;
}

const Backend* cpu_backend_or_composed(const Problem& problem) {
  const std::string name = backend_limit();
  return name == kComposed ? nullptr : &choose_cpu_backend(problem, name);
}

}  // namespace ops
}  // namespace diffattn
