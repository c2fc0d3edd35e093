// SPDX-License-Identifier: Apache-2.0
#include "ops/dispatch/backend_choice.h"

#include <cstdlib>
#include <mutex>
#include <optional>

#include "diffattn/kernels/error.h"
#include "diffattn/ops.h"
#include "ops/dispatch/cuda_fused.h"
#include "ops/glue/view_of.h"

namespace diffattn {
namespace {

struct Limit {
  std::mutex mutex;
  std::optional<std::string> name;  // unset until DIFFATTN_BACKEND has been read
};

Limit& limit() {
  static Limit instance;
  return instance;
}

bool is_cpu_backend(const std::string& name) {
  for (const Backend& backend : cpu_backends()) {
    if (name == backend.name) return true;
  }
  return false;
}

void check_known(const char* argument, const std::string& name) {
  if (name.empty()) return;
  std::string names;
  for (const BackendInfo& backend : backends()) {
    if (name == backend.name) return;
    const std::string word = " " + backend.name;  // a backend of both devices is listed once
    if ((names + " ").find(word + " ") == std::string::npos) names += word;
  }
  throw_argument_error(argument, "one of:" + names, "'" + name + "'");
}

/// Returns a problem of common sizes, to ask which backend computes it.
Problem typical_problem(torch::ScalarType dtype) {
  Problem problem;
  problem.dtype = ops::dtype_of(torch::empty({0}, dtype));
  problem.batch = problem.heads = problem.kv_heads = 1;
  problem.seq_q = problem.seq_k = 1024;
  problem.head_dim = 64;
  problem.value_dim = 128;
  return problem;
}

}  // namespace

std::vector<BackendInfo> backends() {
  const bool has_gpu = torch::cuda::is_available();
  std::vector<BackendInfo> list;
  if (const ops::CudaFused* fused = ops::cuda_fused()) {
    list.push_back(
        {ops::CudaFused::kSm90, "cuda", "fused tiles, wgmma, sm_90", has_gpu && fused->has_sm90()});
    list.push_back(
        {ops::CudaFused::kSm80, "cuda", "fused tiles, mma.sync, sm_80 and later", has_gpu});
  }
  const char* composed = "ATen operators, maps in memory";
  list.push_back({ops::kComposed, "cuda", composed, has_gpu});
  for (const Backend& backend : cpu_backends()) {
    list.push_back({backend.name, "cpu", backend.description, backend.available()});
  }
  list.push_back({ops::kComposed, "cpu", composed, true});
  return list;
}

std::string backend_for(torch::Device device, torch::ScalarType dtype) {
  if (!device.is_cpu()) {
    const torch::Tensor q = torch::empty({1, 128, 1, 64}, torch::dtype(dtype).device(device));
    const torch::Tensor lambda = torch::empty({}, torch::dtype(torch::kFloat32).device(device));
    ops::ProblemArguments arguments;
    arguments.q1 = arguments.q2 = arguments.k1 = arguments.k2 = q;
    arguments.lambda = lambda;
    return ops::cuda_fused_takes(arguments, 128) ? ops::cuda_fused()->name(arguments, 128)
                                                 : ops::kComposed;
  }
  const Backend* backend = ops::cpu_backend_or_composed(typical_problem(dtype));
  return backend == nullptr ? ops::kComposed : backend->name;
}

void limit_backend(const std::string& name) {
  check_known("backend", name);
  const std::lock_guard lock(limit().mutex);
  limit().name = name;
}

namespace ops {

std::string backend_limit() {
  const std::lock_guard lock(limit().mutex);
  if (!limit().name) {
    const char* value = std::getenv("DIFFATTN_BACKEND");
    const std::string name = value == nullptr ? "" : value;
    check_known("DIFFATTN_BACKEND", name);
    limit().name = name;
  }
  return *limit().name;
}

const Backend* cpu_backend_or_composed(const Problem& problem) {
  const std::string name = backend_limit();
  if (name == kComposed) return nullptr;
  return &choose_cpu_backend(problem, is_cpu_backend(name) ? name : "");
}

bool cuda_fused_takes(const ProblemArguments& arguments, int64_t value_dim) {
  const CudaFused* fused = cuda_fused();
  return fused != nullptr && backend_limit() != kComposed && fused->takes(arguments, value_dim);
}

}  // namespace ops

// For Python, which cannot call the C++ function.
TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  m.def("backend_for(Device device, ScalarType dtype) -> str", backend_for);
}

}  // namespace diffattn
