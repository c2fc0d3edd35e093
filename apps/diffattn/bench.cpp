// SPDX-License-Identifier: Apache-2.0
//
// diffattn bench attention: the fused operator beside every other route, on the same tensors, in
// one run. Routes take turns within each repetition, so that a noisy neighbour hits all of them.

#include <fmt/core.h>
#include <torch/torch.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "bench_measure.h"
#include "bench_module.h"
#include "bench_routes.h"
#include "diffattn/ops.h"
#include "machine.h"
#include "progress.h"
#include "verbs.h"

namespace diffattn::app {
namespace {

using Json = nlohmann::ordered_json;
using torch::Tensor;

struct Settings {
  std::vector<int64_t> seq{512, 2048}, head_dim{64};
  std::vector<std::string> dtype{"float32", "bfloat16"}, mask{"causal", "full"};
  std::vector<std::string> pass{"forward", "backward", "decode"};
  std::vector<int> threads;
  int64_t heads = 4, batch = 1;
  int repeat = 5;
  std::string device = "cpu";
  bool json = false, csv = false;
};

const std::map<std::string, torch::ScalarType> kDtypes{{"float32", torch::kFloat32},
                                                       {"bfloat16", torch::kBFloat16},
                                                       {"float16", torch::kFloat16},
                                                       {"float64", torch::kFloat64}};

/// One point of the sweep.
struct Point {
  int64_t seq, head_dim;
  std::string dtype, mask, pass;
  int threads;
};

std::vector<Point> sweep(const Settings& s) {
  std::vector<Point> points;
  for (const int threads : s.threads) {
    for (const int64_t head_dim : s.head_dim) {
      for (const int64_t seq : s.seq) {
        for (const auto& dtype : s.dtype) {
          for (const auto& mask : s.mask) {
            for (const auto& pass : s.pass) {
              if (pass == "decode" && mask != s.mask.front()) continue;  // one query sees all
              points.push_back({seq, head_dim, dtype, mask, pass, threads});
            }
          }
        }
      }
    }
  }
  return points;
}

/// Useful work: 8d FLOP per (query, key) pair forward, 20d backward.
double useful_flop(const Settings& s, const Point& p) {
  const auto n = static_cast<double>(p.seq);
  const double pairs =
      static_cast<double>(s.batch * s.heads) * (p.pass == "decode"   ? n
                                                : p.mask == "causal" ? n * (n + 1) / 2
                                                                     : n * n);
  return pairs * (p.pass == "backward" ? 20.0 : 8.0) * static_cast<double>(p.head_dim);
}

void synchronize(const Settings& s) {
  if (s.device == "cuda") torch::cuda::synchronize();
}

/// Seconds of one run of a route; fills `result` with what it gave.
double time_once(const Settings& s, const Point& p, const Route& route, const LayerTensors& t,
                 Tensor& result) {
  using Clock = std::chrono::steady_clock;
  const bool causal = p.mask == "causal" && p.pass != "decode";
  const auto seconds_since = [&](Clock::time_point start) {
    synchronize(s);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  if (p.pass != "backward") {
    const torch::NoGradGuard no_grad;
    synchronize(s);
    const auto start = Clock::now();
    const bool cached = p.pass == "decode" && &route == &routes().front();
    result = cached ? fused_decode(t) : route.compute(t, causal);
    return seconds_since(start);
  }
  const Tensor out = route.compute(t, causal);
  const Tensor dout = torch::ones_like(out);
  auto leaves = t.leaves();
  if (route.plain) leaves.pop_back();  // it has no lambda
  synchronize(s);
  const auto start = Clock::now();
  result = torch::autograd::grad({out}, leaves, {dout})[0];
  return seconds_since(start);
}

Json measure_point(const Settings& s, const Point& p) {
  torch::set_num_threads(p.threads);
  torch::manual_seed(0);
  const auto options = torch::TensorOptions().dtype(kDtypes.at(p.dtype)).device(s.device);
  LayerTensors t = make_layer(s.batch, s.heads, p.seq, p.head_dim, options);
  if (p.pass == "decode") {
    t.q1 = t.q1.detach().narrow(2, 0, 1);
    t.q2 = t.q2.detach().narrow(2, 0, 1);
  }
  std::vector<std::vector<double>> seconds(routes().size());
  std::vector<Tensor> results(routes().size());
  std::vector<int64_t> memory(routes().size());
  for (int repeat = -1; repeat < s.repeat; ++repeat) {  // the first one warms up
    for (size_t i = 0; i < routes().size(); ++i) {
      const PeakMemory peak(s.device == "cuda");
      Tensor result;
      const double time = time_once(s, p, routes()[i], t, result);
      memory[i] = std::max(memory[i], peak.bytes());
      if (repeat < 0) results[i] = result;
      if (repeat >= 0) seconds[i].push_back(time);
    }
  }

  const double flop = useful_flop(s, p), peak = measure_fma_peak(p.threads);
  Json rows = Json::array();
  double fastest_other = 1e30;
  for (size_t i = 0; i < routes().size(); ++i) {
    const Route& route = routes()[i];
    const Timing timing = summarise(seconds[i]);
    if (i > 0 && !route.plain) fastest_other = std::min(fastest_other, timing.median);
    Json row{{"route", route.name},
             {"ms", timing.median * 1e3},
             {"ms_fastest", timing.fastest * 1e3},
             {"ms_slowest", timing.slowest * 1e3},
             {"gflops", flop / timing.median / 1e9},
             {"peak_memory_mib", static_cast<double>(memory[i]) / (1 << 20)}};
    if (p.dtype == "float32" && s.device == "cpu") {
      row["share_of_fma_peak"] = flop / timing.median / peak;
    }
    if (!route.plain) {
      row["difference"] = ((results[i] - results[0]).to(torch::kFloat32).norm() /
                           results[0].to(torch::kFloat32).norm())
                              .item<double>();
    }
    rows.push_back(row);
  }
  return {{"pass", p.pass},
          {"dtype", p.dtype},
          {"mask", p.mask},
          {"seq", p.seq},
          {"head_dim", p.head_dim},
          {"heads", s.heads},
          {"batch", s.batch},
          {"threads", p.threads},
          {"device", s.device},
          {"backend", backend_for(torch::Device(s.device), kDtypes.at(p.dtype))},
          {"fma_peak_gflops", peak / 1e9},
          {"ratio_to_fastest_other", fastest_other * 1e3 / rows[0]["ms"].get<double>()},
          {"ratio_to_plain", rows.back()["ms"].get<double>() / rows[0]["ms"].get<double>()},
          {"routes", rows}};
}

void print_point(const Json& point) {
  const auto text = [&](const char* key) { return point[key].get<std::string>(); };
  const auto number = [&](const char* key) { return point[key].get<int64_t>(); };
  fmt::print("\n{}, {}, {}: N = {}, d = {}, V = {}, {} heads, batch {}, {} thread{} ({})\n",
             text("pass"), text("dtype"), text("mask"), number("seq"), number("head_dim"),
             2 * number("head_dim"), number("heads"), number("batch"), number("threads"),
             number("threads") == 1 ? "" : "s", text("backend"));
  fmt::print("  {:<20} {:>10} {:>19} {:>9} {:>7} {:>9} {:>9}\n", "route", "ms", "spread", "GFLOP/s",
             "peak", "MiB", "vs fused");
  const double fused = point["routes"][0]["ms"];
  for (const Json& row : point["routes"]) {
    const double ms = row["ms"];
    fmt::print("  {:<20} {:>10.3f} {:>19} {:>9.1f} {:>7} {:>9} {:>8.2f}x\n",
               row["route"].get<std::string>(), ms,
               fmt::format("{:.3f}-{:.3f}", row["ms_fastest"].get<double>(),
                           row["ms_slowest"].get<double>()),
               row["gflops"].get<double>(),
               row.contains("share_of_fma_peak")
                   ? fmt::format("{:.0f} %", 100.0 * row["share_of_fma_peak"].get<double>())
                   : "-",
               fmt::format("{:.1f}", row["peak_memory_mib"].get<double>()), ms / fused);
  }
  fmt::print("  fused is {:.2f}x the fastest other route, {:.2f}x plain attention of equal width\n",
             point["ratio_to_fastest_other"].get<double>(), point["ratio_to_plain"].get<double>());
  std::fflush(stdout);
}

void print_csv(const Json& points) {
  fmt::print(
      "pass,dtype,mask,seq,head_dim,heads,batch,threads,backend,route,ms,ms_fastest,"
      "ms_slowest,gflops\n");
  for (const Json& p : points) {
    for (const Json& row : p["routes"]) {
      fmt::print(
          "{},{},{},{},{},{},{},{},{},\"{}\",{:.4f},{:.4f},{:.4f},{:.2f}\n",
          p["pass"].get<std::string>(), p["dtype"].get<std::string>(), p["mask"].get<std::string>(),
          p["seq"].get<int64_t>(), p["head_dim"].get<int64_t>(), p["heads"].get<int64_t>(),
          p["batch"].get<int64_t>(), p["threads"].get<int64_t>(), p["backend"].get<std::string>(),
          row["route"].get<std::string>(), row["ms"].get<double>(), row["ms_fastest"].get<double>(),
          row["ms_slowest"].get<double>(), row["gflops"].get<double>());
    }
  }
}

int run(const Settings& s) {
  const Machine machine = this_machine();
  Json report{{"cpu", machine.cpu},
              {"gpus", machine.gpus},
              {"torch", DIFFATTN_TORCH_VERSION},
              {"useful_flop", "8d per pair forward and decode, 20d backward"},
              {"points", Json::array()}};
  const bool quiet = s.json || s.csv;
  if (!quiet) {
    fmt::print("{}, torch {}; medians of {} interleaved repetitions\n", machine.cpu,
               DIFFATTN_TORCH_VERSION, s.repeat);
  }
  const auto points = sweep(s);
  Progress progress("bench", static_cast<int64_t>(points.size()));
  for (const Point& p : points) {
    report["points"].push_back(measure_point(s, p));
    progress.clear();
    if (!quiet) print_point(report["points"].back());
    progress.step(fmt::format("N = {} {} {}", p.seq, p.dtype, p.pass));
  }
  progress.clear();
  if (s.json) fmt::print("{}\n", report.dump(2));
  if (s.csv) print_csv(report["points"]);
  return 0;
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Time the fused operator beside every other route");
  bench->footer("Example:\n  diffattn bench attention --seq 2048 --mask causal --dtype float32");
  bench->require_subcommand(1);
  const Run run_module = add_bench_module(*bench);
  auto* verb = bench->add_subcommand("attention", "One attention layer, every route, one run");
  verb->footer("Example:\n  diffattn bench attention --head-dim 64 --seq 2048,4096 --threads 1,2");
  auto s = std::make_shared<Settings>();
  s->threads = {torch::get_num_threads()};
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 24);
  verb->add_option("--seq", s->seq, "Sequence lengths")->delimiter(',')->check(positive);
  verb->add_option("--head-dim", s->head_dim, "Widths of q and k; V is twice as wide")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  verb->add_option("--heads", s->heads, "Differential heads")->check(CLI::Range(1, 4096));
  verb->add_option("--batch", s->batch, "Batch size")->check(CLI::Range(1, 65536));
  verb->add_option("--dtype", s->dtype, "float32, bfloat16, float16, float64")
      ->delimiter(',')
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "float64"}));
  verb->add_option("--mask", s->mask, "causal, full")
      ->delimiter(',')
      ->check(CLI::IsMember({"causal", "full"}));
  verb->add_option("--pass", s->pass, "forward, backward, decode")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "backward", "decode"}));
  verb->add_option("--threads", s->threads, "Thread counts")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  verb->add_option("--repeat", s->repeat, "Repetitions after a warm-up")
      ->check(CLI::Range(1, 10000));
  verb->add_option("--device", s->device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  verb->add_flag("--json", s->json, "One JSON object on standard output");
  verb->add_flag("--csv", s->csv, "Comma-separated values on standard output");
  const auto* module = bench->get_subcommand("module");
  return [s, module, run_module] { return module->parsed() ? run_module() : run(*s); };
}

}  // namespace diffattn::app
