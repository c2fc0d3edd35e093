// SPDX-License-Identifier: Apache-2.0
//
// diffattn selftest: compares every backend of this machine with the reference in double.

#include <fmt/core.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cmath>

#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/ops.h"

namespace diffattn::app {
namespace {

using torch::Tensor;

/// Bounds of the relative Frobenius error of the output and of each gradient.
struct ErrorBound {
  const char* name;
  torch::ScalarType dtype;
  double forward, backward;
};
constexpr std::array kErrorBounds{ErrorBound{"float32", torch::kFloat32, 2e-6, 2e-6},
                                  ErrorBound{"bfloat16", torch::kBFloat16, 3e-3, 6e-3},
                                  ErrorBound{"float16", torch::kFloat16, 4e-4, 8e-4},
                                  ErrorBound{"float64", torch::kFloat64, 1e-13, 1e-13}};

/// One test case.
struct Case {
  std::vector<Tensor> inputs;  // q1 q2 k1 k2 v lambda in double, rounded to the type under test
  AttentionOptions options;
};

std::vector<Case> make_cases(torch::ScalarType dtype) {
  const auto random = [&](std::vector<int64_t> sizes) {
    return torch::randn(sizes, torch::kFloat32).to(dtype).to(torch::kFloat64);
  };
  const auto batch = [&](int64_t rows, int64_t columns, int64_t kv_heads, int64_t width,
                         int64_t value_width) {
    return std::vector<Tensor>{random({2, rows, 4, width}),
                               random({2, rows, 4, width}),
                               random({2, columns, kv_heads, width}),
                               random({2, columns, kv_heads, width}),
                               random({2, columns, kv_heads, value_width}),
                               torch::rand({2, rows, 4}, torch::kFloat32).to(torch::kFloat64)};
  };
  const auto lengths = torch::tensor({33, 70}, torch::kInt);
  const auto offsets = torch::tensor({0, 29, 29, 96}, torch::kInt);
  std::vector<Case> cases;
  cases.push_back(
      {batch(65, 65, 4, 64, 128), AttentionOptions().causal(true).norm_eps(1e-5).out_scale(0.8)});
  cases.push_back({batch(48, 77, 2, 32, 64), AttentionOptions().scale2(0.1)});
  cases.push_back({batch(70, 70, 1, 40, 40), AttentionOptions().window(9)});
  cases.push_back({batch(70, 70, 1, 40, 40), AttentionOptions().window(5, 12)});
  cases.push_back({batch(31, 70, 4, 16, 32), AttentionOptions().causal(true).key_lengths(lengths)});
  cases.push_back({batch(24, 24, 2, 128, 256),
                   AttentionOptions().mask(torch::randn({4, 24, 24}, torch::kFloat32) > 0)});
  Case packed{{random({96, 4, 64}), random({96, 4, 64}), random({96, 2, 64}), random({96, 2, 64}),
               random({96, 2, 128}), torch::rand({4}, torch::kFloat32).to(torch::kFloat64)},
              AttentionOptions().causal(true).cu_seqlens_q(offsets).cu_seqlens_k(offsets)};
  cases.push_back(packed);
  return cases;
}

/// Output and gradients of a case, converted to double.
struct CaseResult {
  Tensor out;
  std::vector<Tensor> gradients;
};

AttentionOptions on_device(AttentionOptions options, const torch::Device& device) {
  const auto move = [&](std::optional<Tensor>& tensor) {
    if (tensor) tensor = tensor->to(device);
  };
  move(options.mask());
  move(options.key_lengths());
  move(options.cu_seqlens_q());
  move(options.cu_seqlens_k());
  return options;
}

CaseResult compute(const Case& one, torch::ScalarType dtype, const torch::Device& device) {
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    const bool is_lambda = i + 1 == one.inputs.size();
    const auto type = is_lambda && dtype != torch::kFloat64 ? torch::kFloat32 : dtype;
    leaves.push_back(one.inputs[i].to(device, type).requires_grad_(true));
  }
  const Tensor out = attention(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], leaves[5],
                               on_device(one.options, device));
  const Tensor dout = torch::linspace(-1, 1, out.numel(), torch::kFloat64).cos().view(out.sizes());
  CaseResult result{out.detach().to(torch::kCPU, torch::kFloat64), {}};
  // We round dout to bfloat16 for every type, so that all types get the same dout.
  const Tensor rounded = dout.to(torch::kBFloat16).to(out.options());
  for (const Tensor& gradient : torch::autograd::grad({out}, leaves, {rounded})) {
    result.gradients.push_back(gradient.to(torch::kCPU, torch::kFloat64));
  }
  return result;
}

/// A case and its result by the reference in double.
struct Truth {
  Case one;
  CaseResult result;
};

std::vector<Truth> make_truths(torch::ScalarType dtype) {
  torch::manual_seed(20260);
  limit_backend("reference");
  std::vector<Truth> truths;
  for (const Case& one : make_cases(dtype)) {
    truths.push_back({one, compute(one, torch::kFloat64, torch::kCPU)});
  }
  limit_backend("");
  return truths;
}

/// Largest relative Frobenius error over the cases: of the outputs, and of the gradients.
struct Errors {
  double forward = 0.0, backward = 0.0;
};

Errors measure_errors(const std::string& backend, const torch::Device& device,
                      torch::ScalarType dtype, const std::vector<Truth>& truths) {
  Errors errors;
  limit_backend(backend);
  for (const auto& [one, truth] : truths) {
    const CaseResult got = compute(one, dtype, device);
    const auto relative = [](const Tensor& a, const Tensor& b) {
      return ((a - b).norm() / b.norm()).item<double>();
    };
    // NaN counts as the worst error and stays the worst: every comparison with NaN is false.
    const auto worse = [](double error, double worst) {
      return error <= worst || std::isnan(worst) ? worst : error;
    };
    errors.forward = worse(relative(got.out, truth.out), errors.forward);
    for (size_t i = 0; i < truth.gradients.size(); ++i) {
      errors.backward = worse(relative(got.gradients[i], truth.gradients[i]), errors.backward);
    }
  }
  limit_backend("");
  return errors;
}

/// Tests one backend with every type that it takes. Returns errors, bounds and verdicts.
Json test_backend(const BackendInfo& backend, const std::vector<std::vector<Truth>>& truths) {
  Json line{{"backend", backend.name}, {"device", backend.device}, {"passed", true}};
  const torch::Device device(backend.device);
  for (size_t i = 0; i < kErrorBounds.size(); ++i) {
    const ErrorBound& bound = kErrorBounds[i];
    limit_backend(backend.name);
    const bool takes = backend_for(device, bound.dtype) == backend.name;
    limit_backend("");
    if (!takes) continue;
    const Errors errors = measure_errors(backend.name, device, bound.dtype, truths[i]);
    const bool passed = errors.forward <= bound.forward && errors.backward <= bound.backward;
    line["types"][bound.name] = {{"forward_error", errors.forward},
                                 {"forward_bound", bound.forward},
                                 {"backward_error", errors.backward},
                                 {"backward_bound", bound.backward},
                                 {"passed", passed}};
    if (!passed) line["passed"] = false;
  }
  return line;
}

/// Returns an error in six characters: "3.0e-7", "5e-16", "0".
std::string error_text(double error) {
  if (error == 0.0) return "0";
  std::string text = fmt::format("{:.1e}", error);
  if (const size_t at = text.find("e-0"); at != std::string::npos) return text.erase(at + 2, 1);
  return fmt::format("{:.0e}", error);
}

void print_line(const Json& line) {
  print_out("  {:<11} {:<6}", line["backend"].get<std::string>(),
            line["device"].get<std::string>());
  for (const ErrorBound& bound : kErrorBounds) {
    if (!line.contains("types") || !line["types"].contains(bound.name)) {
      print_out(" {:>13}", "-");
      continue;
    }
    const Json& type = line["types"][bound.name];
    print_out(" {:>13}",
              error_text(type["forward_error"]) + "/" + error_text(type["backward_error"]));
  }
  print_out("  {}\n", line["passed"].get<bool>() ? "ok" : "FAILED");
  std::fflush(stdout);
}

void print_heading() {
  print_out("Relative error against the reference in double, forward/backward\n");
  print_out("  {:<11} {:<6}", "backend", "device");
  for (const ErrorBound& bound : kErrorBounds) print_out(" {:>13}", bound.name);
  print_out("\n");
}

void print_bounds() {
  print_out("  {:<11} {:<6}", "bound", "");
  for (const ErrorBound& bound : kErrorBounds) {
    print_out(" {:>13}", error_text(bound.forward) + "/" + error_text(bound.backward));
  }
  print_out("\n");
}

int run_selftest(bool json) {
  const auto start = std::chrono::steady_clock::now();
  if (!json) print_heading();
  std::vector<std::vector<Truth>> truths;  // one list per entry of kErrorBounds
  for (const ErrorBound& bound : kErrorBounds) truths.push_back(make_truths(bound.dtype));
  Json report{{"passed", true}};
  for (const BackendInfo& backend : backends()) {
    if (!backend.available) continue;
    const Json line = test_backend(backend, truths);
    if (!line["passed"].get<bool>()) report["passed"] = false;
    report["backends"].push_back(line);
    if (!json) print_line(line);
  }
  const bool passed = report["passed"];
  report["seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (json) {
    print_json(report);
  } else {
    print_bounds();
    print_out("{} in {:.1f} s\n", passed ? "All passed" : "FAILED",
              report["seconds"].get<double>());
  }
  return passed ? 0 : 1;
}

}  // namespace

VerbAction add_selftest(CLI::App& app) {
  auto* verb = app.add_subcommand("selftest", "Check the numerics of every backend (under 30 s)");
  verb->footer("Example:\n  diffattn selftest --json");
  auto json = std::make_shared<bool>(false);
  add_threads_option(*verb);
  verb->add_flag("--json", *json, "print one JSON object");
  return [json] { return run_selftest(*json); };
}

}  // namespace diffattn::app
