// SPDX-License-Identifier: Apache-2.0
//
// diffattn bench attention: the fused operator beside every other route, on the same tensors, in
// one run. Routes take turns within each repetition, so that a noisy neighbour hits all of them.

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "apps/diffattn/bench/frame.h"
#include "apps/diffattn/bench/routes.h"
#include "diffattn/ops.h"
#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::app {
namespace {

using torch::Tensor;

struct Settings {
  std::vector<int64_t> seq{512, 2048}, head_dim{64};
  std::vector<std::string> dtype{"float32", "bfloat16"}, mask{"causal", "full"};
  std::vector<std::string> pass{"forward", "backward", "decode"};
  std::vector<int> threads;
  int64_t heads = 4, batch = 1;
  std::string device = "cpu", lambda = "number";
  std::vector<std::string> route;
  BenchOutput output;

  bool on_gpu() const { return device != "cpu"; }
};

/// One point of the sweep.
struct Point {
  int64_t seq, head_dim;
  std::string dtype, mask, pass;
  int threads;

  bool packed() const { return mask == "varlen" && pass != "decode"; }
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

/// Columns that a row sees with --mask window.
int64_t window_of(const Point& p) { return std::max<int64_t>(1, p.seq / 8); }

/// Documents of unequal lengths, none longer than --seq, that fill `total` tokens.
std::vector<int64_t> document_lengths(int64_t seq, int64_t total) {
  const double shares[] = {1.0, 0.125, 0.5, 0.25, 0.75, 0.0625};
  std::vector<int64_t> lengths;
  for (int64_t left = total; left > 0; left -= lengths.back()) {
    const double share = shares[lengths.size() % std::size(shares)];
    lengths.push_back(std::clamp<int64_t>(std::llround(share * static_cast<double>(seq)), 1, left));
  }
  return lengths;
}

/// (query, key) pairs that see each other, of all sequences.
double seen_pairs(const Settings& s, const Point& p) {
  const auto triangle = [](double n) { return n * (n + 1) / 2; };
  if (p.packed()) {
    double sum = 0.0;
    for (const int64_t n : document_lengths(p.seq, s.batch * p.seq)) {
      sum += triangle(static_cast<double>(n));
    }
    return sum;
  }
  const auto n = static_cast<double>(p.seq), w = static_cast<double>(window_of(p));
  const double seen = p.pass == "decode"   ? n
                      : p.mask == "causal" ? triangle(n)
                      : p.mask == "window" ? n * w - triangle(w - 1)
                                           : n * n;
  return seen * static_cast<double>(s.batch);
}

/// Useful work per (query, key) pair: 20d FLOP backward; forward 8d on a CPU, which can know both
/// softmax denominators before it meets v, and 12d on a GPU, which multiplies v by each map.
double useful_flop(const Settings& s, const Point& p) {
  const double per_pair = p.pass == "backward" ? 20.0 : s.on_gpu() ? 12.0 : 8.0;
  return static_cast<double>(s.heads) * seen_pairs(s, p) * per_pair *
         static_cast<double>(p.head_dim);
}

AttentionOptions options_of(const Settings& s, const Point& p, const LayerTensors& t) {
  AttentionOptions options;
  if (p.pass == "decode") return options;
  options.causal(p.mask == "causal" || p.packed());
  if (p.mask == "window") options.window(window_of(p));
  const auto numbers = torch::TensorOptions().dtype(torch::kFloat32).device(s.device);
  const auto square = [&] { return torch::rand({1, 1, p.seq, p.seq}, numbers); };
  if (p.mask == "tensor") {  // about half of the pairs, of which the diagonal: no row is blind
    options.mask((square() < 0.5).logical_or(torch::eye(p.seq, numbers.dtype(torch::kBool))));
  }
  if (p.mask == "bias") options.mask(square().to(bench_dtype(p.dtype)));
  if (p.packed()) {
    const Tensor ends = torch::tensor(t.lengths).cumsum(0);
    const Tensor offsets = torch::constant_pad_nd(ends, {1, 0}).to(s.device, torch::kInt32);
    options.cu_seqlens_q(offsets).cu_seqlens_k(offsets);
  }
  return options;
}

LayerTensors layer_of(const Settings& s, const Point& p) {
  const auto options = torch::TensorOptions().dtype(bench_dtype(p.dtype)).device(s.device);
  const int64_t batch = p.packed() ? 1 : s.batch, seq = p.packed() ? s.batch * p.seq : p.seq;
  LayerTensors t = make_layer(batch, s.heads, seq, p.head_dim, options, s.lambda == "token");
  if (p.packed()) t.lengths = document_lengths(p.seq, seq);
  if (p.pass == "decode") {
    t.q1 = t.q1.detach().narrow(2, 0, 1);
    t.q2 = t.q2.detach().narrow(2, 0, 1);
    if (t.lambda.dim() == 3) t.lambda = t.lambda.detach().narrow(1, 0, 1);
  }
  return t;
}

/// One run of a route.
BenchSample run_route(const Settings& s, const Point& p, const Route& route, const LayerTensors& t,
                      const AttentionOptions& options) {
  const auto seconds_of = [&](const std::function<void()>& work) {
    return s.on_gpu() ? bench_device_seconds(work) : bench_seconds(false, work);
  };
  const PeakMemory peak(s.on_gpu());
  BenchSample sample;
  if (p.pass != "backward") {
    const torch::NoGradGuard no_grad;
    const bool cached = p.pass == "decode" && &route == &routes(s.on_gpu()).front();
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

/// The routes that take the point, and why others do not. On a GPU this also warms the clocks up.
std::vector<const Route*> usable_routes(const Settings& s, const Point& p, const LayerTensors& t,
                                        const AttentionOptions& options, Json& refused) {
  std::vector<const Route*> usable;
  const auto wanted = [&](const Route& route) {
    const auto within = [&](const std::string& text) {
      return route.name.find(text) != std::string::npos;
    };
    return s.route.empty() || usable.empty() || std::any_of(s.route.begin(), s.route.end(), within);
  };
  for (const Route& route : p.packed() ? packed_routes(s.on_gpu()) : routes(s.on_gpu())) {
    if (route.plain && p.mask == "window" && p.pass != "decode") continue;  // torch has none
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

/// What is compared with the fused route, which is the first row.
Json ratios_of(const std::vector<const Route*>& list, const Json& rows) {
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

Json measure_point(const Settings& s, const Point& p) {
  torch::set_num_threads(p.threads);
  torch::manual_seed(0);
  const LayerTensors t = layer_of(s, p);
  const AttentionOptions attention = options_of(s, p, t);
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

void print_point(const Json& point) {
  const auto text = [&](const char* key) { return point[key].get<std::string>(); };
  const auto number = [&](const char* key) { return point[key].get<int64_t>(); };
  fmt::print("\n{}, {}, {}: N = {}, d = {}, V = {}, {} heads, batch {}, {}{} ({})\n", text("pass"),
             text("dtype"), text("mask"), number("seq"), number("head_dim"), 2 * number("head_dim"),
             number("heads"), number("batch"), thread_text(number("threads")),
             text("lambda") == "token" ? ", lambda of tokens" : "", text("backend"));
  const bool on_gpu = text("device") != "cpu";
  fmt::print("  {:<28} {:>10} {:>19} {:>9} {:>7} {:>9} {:>9}\n", "route", "ms", "spread",
             on_gpu ? "TFLOP/s" : "GFLOP/s", "peak", "MiB", "vs fused");
  const double fused = point["routes"][0]["ms"];
  for (const Json& row : point["routes"]) {
    const double ms = row["ms"];
    fmt::print("  {:<28} {:>10.3f} {:>19} {:>9.1f} {:>7} {:>9} {:>8.2f}x\n",
               row["route"].get<std::string>(), ms, spread_text(row),
               row["gflops"].get<double>() / (on_gpu ? 1e3 : 1.0),
               row.contains("share_of_fma_peak")
                   ? fmt::format("{:.0f} %", 100.0 * row["share_of_fma_peak"].get<double>())
                   : "-",
               fmt::format("{:.1f}", row["peak_memory_mib"].get<double>()), ms / fused);
  }
  std::vector<std::string> ratios;
  if (text("fastest_other") != "none") {
    ratios.push_back(fmt::format("{:.2f}x as fast as the fastest other route ({})",
                                 point["ratio_to_fastest_other"].get<double>(),
                                 text("fastest_other")));
  }
  if (const Json& plain = point["ratio_to_plain"]; !plain.is_null()) {
    ratios.push_back(
        fmt::format("{:.2f}x as fast as plain attention of equal width", plain.get<double>()));
  }
  if (!ratios.empty()) fmt::print("  fused is {}\n", fmt::join(ratios, ",\n           "));
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

int run_attention(const Settings& s) {
  const auto points = sweep(s);
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
       .print = print_point,
       .print_csv = print_csv});
}

/// Part of some route's name, on any device.
std::string check_route_text(const std::string& text) {
  for (const bool on_gpu : {false, true}) {
    for (const auto* list : {&routes(on_gpu), &packed_routes(on_gpu)}) {
      for (const Route& route : *list) {
        if (route.name.find(text) != std::string::npos) return {};
      }
    }
  }
  return fmt::format("expected part of a route's name as the table has it, got '{}'", text);
}

/// In place of CLI11's "A subcommand is required", which says neither what came nor what exists.
void require_benchmark(CLI::App& bench) {
  bench.require_subcommand(0, 1);
  bench.parse_complete_callback([&bench] {
    if (!bench.get_subcommands().empty()) return;
    std::string known;
    for (const CLI::App* benchmark : bench.get_subcommands([](const CLI::App*) { return true; })) {
      known += (known.empty() ? "" : ", ") + benchmark->get_name();
    }
    const auto came = bench.remaining();
    throw CLI::RequiredError(fmt::format("bench: expected one of {}{}", known,
                                         came.empty() ? "" : ", got '" + came.front() + "'"),
                             CLI::ExitCodes::RequiredError);
  });
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Time operator, layer, training step and generation");
  bench->footer("Example:\n  diffattn bench attention --seq 2048 --mask causal --dtype float32");
  require_benchmark(*bench);
  auto* verb = bench->add_subcommand("attention", "The attention operator, every route, one run");
  const std::vector<std::pair<std::string, Run>> others{{"module", add_bench_module(*bench)},
                                                        {"step", add_bench_step(*bench)},
                                                        {"generate", add_bench_generate(*bench)}};
  verb->footer("Example:\n  diffattn bench attention --head-dim 64 --seq 2048,4096 --threads 1,2");
  auto s = std::make_shared<Settings>();
  s->threads = {torch::get_num_threads()};
  const auto size = integer_in(1, int64_t{1} << 24);
  verb->add_option("--seq", s->seq, "sequence lengths (512,2048)")->delimiter(',')->check(size);
  verb->add_option("--head-dim", s->head_dim, "widths of q and k, V being twice as wide (64)")
      ->delimiter(',')
      ->check(integer_in(1, 1024));
  verb->add_option("--heads", s->heads, "differential heads (4)")->check(integer_in(1, 4096));
  verb->add_option("--batch", s->batch, "sequences at a time (1)")->check(integer_in(1, 65536));
  verb->add_option("--dtype", s->dtype, "types (float32,bfloat16)")
      ->delimiter(',')
      ->check(CLI::IsMember(bench_dtypes()));
  verb->add_option(
          "--mask", s->mask,
          "what rows may see: window, an eighth of the keys; varlen, batch x seq tokens of "
          "packed causal documents; tensor and bias, a boolean and an additive mask "
          "(causal,full)")
      ->delimiter(',')
      ->check(CLI::IsMember({"causal", "full", "window", "varlen", "tensor", "bias"}));
  verb->add_option("--lambda", s->lambda, "one number, or one for each token and head (number)")
      ->check(CLI::IsMember({"number", "token"}));
  verb->add_option("--route", s->route, "only fused and routes with one of these in their names")
      ->delimiter(',')
      ->check(CLI::Validator(check_route_text, "TEXT"));
  verb->add_option("--pass", s->pass, "what is timed (all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "backward", "decode"}));
  verb->add_option("--threads", s->threads, "thread counts (what torch takes)")
      ->delimiter(',')
      ->check(integer_in(1, 1024));
  add_device_option(*verb, s->device);
  add_bench_output(*verb, s->output);
  return [s, bench, others] {
    for (const auto& [name, run] : others) {
      if (bench->get_subcommand(name)->parsed()) return run();
    }
    return run_attention(*s);
  };
}

}  // namespace diffattn::app
