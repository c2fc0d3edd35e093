// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/frame.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/core.h>

#include <chrono>

#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/progress.h"

namespace diffattn::app {

void add_bench_output(CLI::App& verb, BenchOutput& output) {
  verb.add_option("--repeat", output.repeat, "repetitions after a warm-up (5)")
      ->check(integer_in(1, 10000));
  CLI::Option* json = verb.add_flag("--json", output.json, "one JSON object on standard output");
  verb.add_flag("--csv", output.csv, "comma-separated values on standard output")->excludes(json);
}

int run_sweep(const BenchOutput& output, const BenchSweep& sweep) {
  const c10::DeviceGuard current{torch::Device(sweep.device)};
  const Machine machine = this_machine();
  Json report{{"cpu", machine.cpu}, {"gpus", machine.gpus}, {"torch", DIFFATTN_TORCH_VERSION}};
  report.update(sweep.head);
  report["points"] = Json::array();
  const bool quiet = output.json || output.csv;
  if (!quiet) {
    fmt::print("{}, torch {}; {}\n", machine.cpu, DIFFATTN_TORCH_VERSION,
               output.repeat == 1
                   ? "one repetition"
                   : fmt::format("medians of {} interleaved repetitions", output.repeat));
  }
  Progress progress("bench", static_cast<int64_t>(sweep.points));
  for (size_t i = 0; i < sweep.points; ++i) {
    report["points"].push_back(sweep.measure(i));
    progress.clear();
    if (!quiet) {
      sweep.print(report["points"].back());
      std::fflush(stdout);
    }
    progress.step(sweep.label(i));
  }
  progress.clear();
  if (output.json) fmt::print("{}\n", report.dump(2));
  if (output.csv) sweep.print_csv(report["points"]);
  return 0;
}

std::vector<BenchSamples> take_turns(size_t count, int repeat,
                                     const std::function<BenchSample(size_t route)>& run) {
  std::vector<BenchSamples> all(count);
  std::vector<std::vector<double>> seconds(count);
  for (int turn = -1; turn < repeat; ++turn) {
    for (size_t i = 0; i < count; ++i) {
      const BenchSample sample = run(i);
      if (turn < 0) {
        all[i].result = sample.result;
      } else {
        seconds[i].push_back(sample.seconds);
        all[i].memory = std::max(all[i].memory, sample.memory);
      }
    }
  }
  for (size_t i = 0; i < count; ++i) all[i].timing = summarise(seconds[i]);
  return all;
}

Json bench_row(const std::string& route, const BenchSamples& samples) {
  return {{"route", route},
          {"ms", samples.timing.median * 1e3},
          {"ms_fastest", samples.timing.fastest * 1e3},
          {"ms_slowest", samples.timing.slowest * 1e3},
          {"peak_memory_mib", static_cast<double>(samples.memory) / (1 << 20)}};
}

double bench_seconds(bool on_gpu, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  if (on_gpu) torch::cuda::synchronize();
  const auto start = Clock::now();
  work();
  if (on_gpu) torch::cuda::synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double bench_device_seconds(const std::function<void()>& work) {
  constexpr int64_t kFlushBytes = int64_t{512} << 20;  // several times the caches of any GPU
  static torch::Tensor& flush = *new torch::Tensor(    // never freed: it would outlive the driver
      torch::empty({kFlushBytes}, torch::dtype(torch::kUInt8).device(torch::kCUDA)));
  const c10::impl::VirtualGuardImpl gpu(c10::kCUDA);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  c10::Event start(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  torch::cuda::synchronize();
  // While they run the host queues the work behind them; one ends before autograd's thread wakes.
  for (int i = 0; i < 4; ++i) flush.zero_();
  start.record(stream);
  work();
  end.record(stream);
  end.synchronize();
  return start.elapsedTime(end) * 1e-3;
}

torch::ScalarType bench_dtype(const std::string& name) {
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  return name == "float64" ? torch::kFloat64 : torch::kFloat32;
}

const std::vector<std::string>& bench_dtypes() {
  static const std::vector<std::string> names{"float32", "bfloat16", "float16", "float64"};
  return names;
}

std::string spread_text(const Json& row) {
  return fmt::format("{:.3f}-{:.3f}", row["ms_fastest"].get<double>(),
                     row["ms_slowest"].get<double>());
}

}  // namespace diffattn::app
