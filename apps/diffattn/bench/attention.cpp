// SPDX-License-Identifier: Apache-2.0
//
// diffattn bench attention: times the fused operator and every other route on the same tensors, in
// one run.

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "apps/diffattn/bench/attention_point.h"
#include "apps/diffattn/bench/measure/fma_peak.h"
#include "apps/diffattn/bench/measure/peak_memory.h"
#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/ops.h"

namespace diffattn::app {
namespace {

using torch::Tensor;

/// Runs a route once.
BenchSample run_route(const AttentionSettings& s, const AttentionPoint& p, const BenchRoute& route,
                      const LayerTensors& t, const AttentionOptions& options) {
  const auto seconds_of = [&](const std::function<void()>& work) {
    return s.on_gpu() ? gpu_seconds(work) : wall_seconds(false, work);
  };
  const PeakMemory peak(s.on_gpu());
  BenchSample sample;
  if (p.pass != "backward") {
    const torch::NoGradGuard no_grad;
    const bool cached = p.pass == "decode" && &route == &bench_routes(s.on_gpu()).front();
    sample.seconds =
        seconds_of([&] { sample.result = cached ? fused_decode(t) : route(t, options); });
  } else {
    const Tensor out = route(t, options);
    const Tensor dout = torch::ones_like(out);
    auto leaves = t.leaves();
    if (route.plain) leaves.pop_back();  // it has no lambda
    sample.seconds =
        seconds_of([&] { sample.result = torch::autograd::grad({out}, leaves, {dout})[0]; });
  }
  sample.memory = peak.bytes();
  return sample;
}

/// Returns the routes to time. On a GPU it first runs each route once, which also warms up the
/// clocks. It puts the errors of routes that do not support the point into `refused`.
std::vector<const BenchRoute*> usable_routes(const AttentionSettings& s, const AttentionPoint& p,
                                             const LayerTensors& t, const AttentionOptions& options,
                                             Json& refused) {
  std::vector<const BenchRoute*> usable;
  const auto wanted = [&](const BenchRoute& route) {
    const auto within = [&](const std::string& text) {
      return route.name.find(text) != std::string::npos;
    };
    return s.route.empty() || usable.empty() || std::any_of(s.route.begin(), s.route.end(), within);
  };
  for (const BenchRoute& route :
       p.packed() ? packed_routes(s.on_gpu()) : bench_routes(s.on_gpu())) {
    if (route.plain && p.mask == "window" && p.pass != "decode") continue;  // torch has no window
    if (!wanted(route)) continue;
    if (s.on_gpu()) {
      try {
        run_route(s, p, route, t, options);
      } catch (const c10::Error& error) {
        refused[route.name] = error.what_without_backtrace();
        continue;
      }
    }
    usable.push_back(&route);
  }
  return usable;
}

/// Returns the speed of the fused route, the first row, relative to the others.
Json ratios_of(const std::vector<const BenchRoute*>& list, const Json& rows) {
  const double fused = rows[0]["ms"];
  double other = INFINITY, plain = INFINITY;
  std::string fastest = "none";
  for (size_t i = 1; i < list.size(); ++i) {
    const double ms = rows[i]["ms"];
    if (list[i]->plain) plain = std::min(plain, ms);
    if (list[i]->plain || ms >= other) continue;
    other = ms;
    fastest = list[i]->name;
  }
  return {{"fastest_other", fastest},
          {"ratio_to_fastest_other", other / fused},
          {"ratio_to_plain", std::isinf(plain) ? Json() : Json(plain / fused)}};
}

Json measure_point(const AttentionSettings& s, const AttentionPoint& p) {
  torch::set_num_threads(p.threads);
  torch::manual_seed(0);
  const LayerTensors t = attention_tensors(s, p);
  const AttentionOptions attention = attention_options(s, p, t);
  Json refused = Json::object();
  const auto list = usable_routes(s, p, t, attention, refused);
  const auto samples = take_turns(list.size(), s.output.repeat, [&](size_t i) {
    return run_route(s, p, *list[i], t, attention);
  });

  const double flop = useful_flop(s, p), peak = s.on_gpu() ? 0.0 : measure_fma_peak(p.threads);
  Json rows = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    const double seconds = samples[i].timing.median;
    Json row = bench_row(list[i]->name, samples[i]);
    row["gflops"] = flop / seconds / 1e9;
    if (p.dtype == "float32" && !s.on_gpu()) row["share_of_fma_peak"] = flop / seconds / peak;
    if (!list[i]->plain) {
      const Tensor first = samples[0].result.to(torch::kFloat32);
      row["difference"] =
          ((samples[i].result.to(torch::kFloat32) - first).norm() / first.norm()).item<double>();
    }
    rows.push_back(row);
  }
  Json point{{"pass", p.pass},
             {"dtype", p.dtype},
             {"mask", p.mask},
             {"lambda", s.lambda},
             {"seq", p.seq},
             {"head_dim", p.head_dim},
             {"heads", s.heads},
             {"batch", s.batch},
             {"threads", p.threads},
             {"device", s.device},
             {"backend", backend_for(torch::Device(s.device), bench_dtype(p.dtype))},
             {"fma_peak_gflops", peak / 1e9}};
  point.update(ratios_of(list, rows));
  point["routes"] = rows;
  if (s.on_gpu()) point["refused"] = refused;
  return point;
}

void print_ratios(const Json& point) {
  std::vector<std::string> ratios;
  if (const auto name = point["fastest_other"].get<std::string>(); name != "none") {
    ratios.push_back(fmt::format("{:.2f}x as fast as the fastest other route ({})",
                                 point["ratio_to_fastest_other"].get<double>(), name));
  }
  if (const Json& plain = point["ratio_to_plain"]; !plain.is_null()) {
    ratios.push_back(
        fmt::format("{:.2f}x as fast as plain attention of equal width", plain.get<double>()));
  }
  if (!ratios.empty()) print_out("  fused is {}\n", fmt::join(ratios, ",\n           "));
}

void print_attention_point(const Json& point) {
  const auto text = [&](const char* key) { return point[key].get<std::string>(); };
  const auto number = [&](const char* key) { return point[key].get<int64_t>(); };
  print_out("\n{}, {}, {}: N = {}, d = {}, V = {}, {} heads, batch {},\n  {}{}, backend {}\n",
            text("pass"), text("dtype"), text("mask"), number("seq"), number("head_dim"),
            2 * number("head_dim"), number("heads"), number("batch"),
            thread_text(number("threads")), text("lambda") == "token" ? ", lambda per token" : "",
            text("backend"));
  const bool on_gpu = text("device") != "cpu";
  const double fused = point["routes"][0]["ms"];
  std::vector<BenchColumn> columns = time_columns();
  columns.push_back({on_gpu ? "TFLOP/s" : "GFLOP/s", [on_gpu](const Json& row) {
                       return fmt::format("{:.1f}",
                                          row["gflops"].get<double>() / (on_gpu ? 1e3 : 1.0));
                     }});
  columns.push_back({"peak", [](const Json& row) {
                       if (!row.contains("share_of_fma_peak")) return std::string("-");
                       return fmt::format("{:.0f} %",
                                          100.0 * row["share_of_fma_peak"].get<double>());
                     }});
  columns.push_back(number_column("MiB", "peak_memory_mib", 1));
  columns.push_back({"vs fused", [fused](const Json& row) {
                       return fmt::format("{:.2f}x", row["ms"].get<double>() / fused);
                     }});
  print_routes(point, "route", columns);
  print_ratios(point);
}

void print_attention_csv(const Json& points) {
  print_out(
      "pass,dtype,mask,seq,head_dim,heads,batch,threads,backend,route,ms,ms_fastest,"
      "ms_slowest,gflops\n");
  for (const Json& p : points) {
    for (const Json& row : p["routes"]) {
      print_out("{},{},{},{},{},{},{},{},{},\"{}\",{:.4f},{:.4f},{:.4f},{:.2f}\n",
                p["pass"].get<std::string>(), p["dtype"].get<std::string>(),
                p["mask"].get<std::string>(), p["seq"].get<int64_t>(), p["head_dim"].get<int64_t>(),
                p["heads"].get<int64_t>(), p["batch"].get<int64_t>(), p["threads"].get<int64_t>(),
                p["backend"].get<std::string>(), row["route"].get<std::string>(),
                row["ms"].get<double>(), row["ms_fastest"].get<double>(),
                row["ms_slowest"].get<double>(), row["gflops"].get<double>());
    }
  }
}

int run_attention(const AttentionSettings& s) {
  const auto points = attention_points(s);
  return run_sweep(
      s.output,
      {.device = s.device,
       .points = points.size(),
       .head = {{"useful_flop", s.on_gpu() ? "12d per pair forward and decode, 20d backward"
                                           : "8d per pair forward and decode, 20d backward"}},
       .label =
           [&](size_t i) {
             return fmt::format("N = {} {} {}", points[i].seq, points[i].dtype, points[i].pass);
           },
       .measure = [&](size_t i) { return measure_point(s, points[i]); },
       .print = print_attention_point,
       .print_csv = print_attention_csv});
}

/// Checks --route: the text must be part of the name of a route on some device.
std::string check_route_text(const std::string& text) {
  for (const bool on_gpu : {false, true}) {
    for (const auto* list : {&bench_routes(on_gpu), &packed_routes(on_gpu)}) {
      for (const BenchRoute& route : *list) {
        if (route.name.find(text) != std::string::npos) return {};
      }
    }
  }
  return fmt::format("expected a part of a route's name in the table, got '{}'", text);
}

}  // namespace

VerbAction add_bench_attention(CLI::App& bench) {
  auto* verb = bench.add_subcommand("attention", "Time the attention operator by every route");
  verb->footer("Example:\n  diffattn bench attention --head-dim 64 --seq 2048,4096 --threads 1,2");
  auto s = std::make_shared<AttentionSettings>();
  s->threads = {torch::get_num_threads()};
  const auto size = integer_in(1, int64_t{1} << 24);
  verb->add_option("--seq", s->seq, "sequence lengths (default 512,2048)")
      ->delimiter(',')
      ->check(size);
  verb->add_option("--head-dim", s->head_dim, "widths of q and k; V is twice as wide (default 64)")
      ->delimiter(',')
      ->check(integer_in(1, 1024));
  verb->add_option("--heads", s->heads, "differential heads (default 4)")
      ->check(integer_in(1, 4096));
  verb->add_option("--batch", s->batch, "sequences at a time (default 1)")
      ->check(integer_in(1, 65536));
  verb->add_option("--dtype", s->dtype, "types (default float32,bfloat16)")
      ->delimiter(',')
      ->check(CLI::IsMember(bench_dtypes()));
  verb->add_option("--mask", s->mask,
                   "keys that a query sees: window is an eighth of them; varlen packs causal "
                   "documents, batch x seq tokens together; tensor and bias are a boolean and an "
                   "additive mask (default causal,full)")
      ->delimiter(',')
      ->check(CLI::IsMember({"causal", "full", "window", "varlen", "tensor", "bias"}));
  verb->add_option("--lambda", s->lambda, "one number, or one per token and head (default number)")
      ->check(CLI::IsMember({"number", "token"}));
  verb->add_option("--route", s->route,
                   "time only fused and routes with one of these texts in their names")
      ->delimiter(',')
      ->check(CLI::Validator(check_route_text, ""));
  verb->add_option("--pass", s->pass, "passes to time (default all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "backward", "decode"}));
  verb->add_option("--threads", s->threads, "thread counts (default: as torch chooses)")
      ->delimiter(',')
      ->check(integer_in(1, 1024));
  add_device_option(*verb, s->device);
  add_bench_output(*verb, s->output);
  return [s] { return run_attention(*s); };
}

}  // namespace diffattn::app
