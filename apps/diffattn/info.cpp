// SPDX-License-Identifier: Apache-2.0
//
// diffattn info: versions, the machine, its backends, and the backend that each type runs on; or
// what a model folder holds.

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "apps/diffattn/info_model.h"
#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/model_option.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/terminal.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/kernels/backend.h"
#include "diffattn/ops.h"
#include "diffattn/parallel/collective.h"

namespace diffattn::app {
namespace {

struct NamedDtype {
  const char* name;
  torch::ScalarType of_torch;
  Dtype of_kernels;
};

constexpr std::array kDtypes{NamedDtype{"float32", torch::kFloat32, Dtype::kFloat32},
                             NamedDtype{"bfloat16", torch::kBFloat16, Dtype::kBFloat16},
                             NamedDtype{"float16", torch::kFloat16, Dtype::kFloat16},
                             NamedDtype{"float64", torch::kFloat64, Dtype::kFloat64}};

/// True if a CPU backend refuses the type on every machine.
bool refuses(const BackendInfo& info, Dtype dtype) {
  Problem problem;
  problem.dtype = dtype;
  return info.device == "cpu" && std::ranges::any_of(cpu_backends(), [&](const Backend& backend) {
           return info.name == backend.name && !backend.takes(problem);
         });
}

/// Returns why each backend before the chosen one was not taken.
std::string choice_reason(const std::string& device, Dtype dtype, const std::string& chosen) {
  const std::string_view limit = environment_variable("DIFFATTN_BACKEND");
  if (!limit.empty()) return fmt::format("DIFFATTN_BACKEND={}", limit);
  std::vector<std::string> unfit, absent, reasons;
  for (const BackendInfo& backend : backends()) {
    if (backend.device != device) continue;
    if (backend.name == chosen) break;
    const bool here = backend.available || refuses(backend, dtype);
    (here ? unfit : absent).push_back(backend.name);
  }
  if (!unfit.empty()) {
    reasons.push_back(fmt::format("{} {} not take it", fmt::join(unfit, ", "),
                                  unfit.size() == 1 ? "does" : "do"));
  }
  if (!absent.empty()) {
    reasons.push_back(fmt::format("{} {} not on this machine", fmt::join(absent, ", "),
                                  absent.size() == 1 ? "is" : "are"));
  }
  return reasons.empty() ? "first in the list" : fmt::format("{}", fmt::join(reasons, "; "));
}

Json collect_info() {
  const Machine machine = this_machine();
  Json info;
  info["version"] = DIFFATTN_VERSION;
  info["compiler"] = "g++ " __VERSION__;
  info["torch"] = DIFFATTN_TORCH_VERSION;
  info["cuda_kernels"] = DIFFATTN_CUDA_KERNELS;
  info["cpu"] = {{"model", machine.cpu},
                 {"cores", machine.cores},
                 {"threads", torch::get_num_threads()},
                 {"isa", machine.isa},
                 {"memory_gib", static_cast<double>(machine.memory_bytes) / (1 << 30)},
                 {"memory_limited", machine.memory_limited}};
  const bool usable = torch::cuda::is_available();
  info["gpu"] = {{"models", machine.gpus},
                 {"usable", usable ? static_cast<int>(torch::cuda::device_count()) : 0}};
  for (const BackendInfo& backend : backends()) {
    info["backends"].push_back({{"name", backend.name},
                                {"device", backend.device},
                                {"available", backend.available},
                                {"description", backend.description}});
  }
  for (const std::string device : {"cpu", "cuda"}) {
    if (device == "cuda" && !usable) continue;
    for (const NamedDtype& dtype : kDtypes) {
      const std::string chosen = backend_for(torch::Device(device), dtype.of_torch);
      info["choice"].push_back({{"device", device},
                                {"dtype", dtype.name},
                                {"backend", chosen},
                                {"why", choice_reason(device, dtype.of_kernels, chosen)}});
    }
  }
  return info;
}

/// Returns the processes of the job and their hosts, in the order of the ranks.
Json job_info(parallel::Collective& world) {
  std::array<char, 65> name{};  // a host name and its final zero
  gethostname(name.data(), name.size() - 1);
  const Json hosts = parallel::all_gather_texts(world, name.data());
  return {{"processes", world.size()}, {"hosts", hosts}};
}

/// "4 processes: a (ranks 0, 1), b (ranks 2, 3)"
std::string job_text(const Json& job) {
  std::vector<std::pair<std::string, std::string>> hosts;  // with ranks
  int rank = 0;
  for (const Json& name : job["hosts"]) {
    const auto host = name.get<std::string>();
    const auto at = std::ranges::find(hosts, host, &std::pair<std::string, std::string>::first);
    if (at == hosts.end()) {
      hosts.emplace_back(host, std::to_string(rank++));
    } else {
      at->second += ", " + std::to_string(rank++);
    }
  }
  std::vector<std::string> texts;
  for (const auto& [host, ranks] : hosts) {
    const char* word = ranks.find(',') != std::string::npos ? "ranks" : "rank";
    texts.push_back(fmt::format("{} ({} {})", host, word, ranks));
  }
  return fmt::format("{} {}: {}", rank, rank == 1 ? "process" : "processes",
                     fmt::join(texts, ", "));
}

std::string gpu_text(const Json& gpu) {
  const auto models = gpu["models"].get<std::vector<std::string>>();
  const int usable = gpu["usable"];
  if (models.empty() && usable == 0) return "none";
  const std::string names = models.empty() ? fmt::format("{} usable", usable)
                                           : fmt::format("{}", fmt::join(models, ", "));
  return usable > 0 ? names : names + " (this torch cannot use it)";
}

void print_info(const Json& info) {
  const Json& cpu = info["cpu"];
  const auto row = [](const char* name, const std::string& text) {
    print_out("  {:<9} {}\n", name, text);
  };
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  print_out("diffattn {}\n", text(info["version"]));
  row("built", fmt::format("{}, torch {}, CUDA kernels: {}", text(info["compiler"]),
                           text(info["torch"]), text(info["cuda_kernels"])));
  row("CPU", fmt::format("{}, {} {}, {}, {:.1f} GiB{}", text(cpu["model"]), cpu["cores"].get<int>(),
                         cpu["cores"].get<int>() == 1 ? "core" : "cores",
                         thread_text(cpu["threads"].get<int>()), cpu["memory_gib"].get<double>(),
                         cpu["memory_limited"].get<bool>() ? " (limit of the control group)" : ""));
  row("ISA", fmt::format("{}", fmt::join(cpu["isa"].get<std::vector<std::string>>(), " ")));
  row("GPU", gpu_text(info["gpu"]));
  if (info.contains("job")) row("job", job_text(info["job"]));

  print_out("\n  {:<12} {:<7} {:<9} {}\n", "backend", "device", "here", "description");
  for (const Json& backend : info["backends"]) {
    print_out("  {:<12} {:<7} {:<9} {}\n", text(backend["name"]), text(backend["device"]),
              backend["available"].get<bool>() ? "yes" : "no", text(backend["description"]));
  }
  print_out("\n  {:<9} {:<7} {:<12} {}\n", "type", "device", "runs on", "why");
  for (const Json& choice : info["choice"]) {
    print_out("  {:<9} {:<7} {:<12} {}\n", text(choice["dtype"]), text(choice["device"]),
              text(choice["backend"]), text(choice["why"]));
  }
}

}  // namespace

VerbAction add_info(CLI::App& app) {
  struct Options {
    bool json = false;
    std::string model;
  };
  auto* verb =
      app.add_subcommand("info", "Show versions, the machine and its backends, or a model");
  verb->footer("Example:\n  diffattn info --json\n  diffattn info --model DIR");
  auto options = std::make_shared<Options>();
  verb->add_flag("--json", options->json, "print one JSON object");
  add_model_option(*verb, options->model, "describe this model instead, without loading it")
      ->required(false);
  return [options] {
    const auto world = parallel::world();
    Json info = options->model.empty() ? collect_info() : model_info(options->model);
    if (world->is_group()) info["job"] = job_info(*world);
    if (world->rank() != 0) return 0;
    if (options->json) {
      print_json(info);
    } else if (options->model.empty()) {
      print_info(info);
    } else {
      print_model_info(info);
    }
    return 0;
  };
}

}  // namespace diffattn::app
