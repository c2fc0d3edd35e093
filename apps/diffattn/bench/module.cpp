// SPDX-License-Identifier: Apache-2.0
//
// diffattn bench module: times a whole attention layer (projections, rotary embedding, mask,
// attention, head norm) by every route and measures its memory.

#include <fmt/core.h>
#include <torch/torch.h>

#include "apps/diffattn/bench/measure/peak_memory.h"
#include "apps/diffattn/bench/sweep.h"
#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/nn/multihead_diff_attention.h"
#include "diffattn/nn/presets.h"

namespace diffattn::app {
namespace {

using Layer = nn::MultiheadDiffAttentionImpl;
using torch::Tensor;

struct ModuleSettings {
  std::string preset = "diffllama", device = "cpu";
  std::vector<int64_t> seq{512, 2048};
  std::vector<std::string> dtype{"float32"}, mask{"causal"}, pass{"forward", "backward"}, route;
  int64_t embed_dim = 512, heads = 8, kv_heads = 0, batch = 1;  // kv_heads 0: as heads
  int threads = 1;
  bool no_rotary = false;
  BenchOutput output;

  bool on_gpu() const { return device != "cpu"; }
};

const std::vector<std::string> kModuleMasks{"causal",        "full",    "window",  "left_padding",
                                            "right_padding", "boolean", "additive"};

/// One point of the sweep.
struct ModulePoint {
  int64_t seq;
  std::string dtype, mask, pass;
};

std::shared_ptr<Layer> module_layer(const ModuleSettings& s, const ModulePoint& p) {
  auto options = preset_options(
      s.preset, nn::PresetOptions(s.embed_dim, s.heads).num_key_value_heads(s.kv_heads));
  if (s.no_rotary) options.rotary({});
  const auto layer = std::make_shared<Layer>(options);
  layer->to(torch::Device(s.device), bench_dtype(p.dtype));
  return layer;
}

nn::AttentionMask module_mask(const ModuleSettings& s, const ModulePoint& p) {
  const auto on_device = torch::TensorOptions().device(s.device);
  std::vector<int64_t> padding;  // sequence b has 1 / (2 (b + 1)) of its tokens as padding
  for (int64_t b = 0; b < s.batch; ++b) padding.push_back(p.seq / 2 / (b + 1));
  const Tensor padded = torch::tensor(padding, torch::kLong).to(torch::Device(s.device));
  nn::AttentionMask mask;
  if (p.mask == "full") mask.causal(false);
  if (p.mask == "window") mask.window(std::max<int64_t>(1, p.seq / 4));
  if (p.mask == "left_padding") mask.key_starts(padded);
  if (p.mask == "right_padding") mask.key_lengths(p.seq - padded);
  if (p.mask == "boolean") mask.mask(torch::rand({p.seq, p.seq}, on_device) > 0.2);
  if (p.mask == "additive") mask.mask(torch::randn({p.seq, p.seq}, on_device));
  return mask;
}

/// One layer with its input, mask and KV cache, to be run by every route.
class ModuleMeasurement {
 public:
  ModuleMeasurement(const ModuleSettings& settings, const ModulePoint& point)
      : s_(settings), p_(point), layer_(module_layer(settings, point)), mask_(module_mask(s_, p_)) {
    const auto options = torch::TensorOptions().device(s_.device).dtype(bench_dtype(p_.dtype));
    x_ = torch::randn({s_.batch, p_.seq, s_.embed_dim}, options).requires_grad_(true);
    if (p_.pass == "decode") fill_cache();
  }

  BenchSample run(nn::Route route) {
    layer_->set_route(route);
    const PeakMemory peak(s_.on_gpu());
    BenchSample sample;
    if (p_.pass == "backward") {
      const Tensor out = forward();
      const auto parameters = layer_->parameters();
      std::vector<Tensor> leaves{x_};
      leaves.insert(leaves.end(), parameters.begin(), parameters.end());
      const Tensor dout = torch::ones_like(out);
      sample.seconds = wall_seconds(
          s_.on_gpu(), [&] { sample.result = torch::autograd::grad({out}, leaves, {dout})[0]; });
    } else {
      const torch::NoGradGuard no_grad;
      if (p_.pass == "decode") cache_.rewind(p_.seq - 1);
      sample.seconds = wall_seconds(s_.on_gpu(), [&] { sample.result = forward(); });
    }
    sample.memory = peak.bytes();
    return sample;
  }

  int64_t parameters() const { return layer_->parameter_count(); }

 private:
  Tensor forward() {
    if (p_.pass != "decode") return layer_->forward({.x = x_, .mask = mask_});
    return layer_->forward({.x = x_.narrow(1, p_.seq - 1, 1), .cache = &cache_});
  }

  void fill_cache() {
    const torch::NoGradGuard no_grad;
    layer_->forward({.x = x_, .cache = &cache_});
  }

  const ModuleSettings& s_;
  const ModulePoint& p_;
  std::shared_ptr<Layer> layer_;
  nn::AttentionMask mask_;
  nn::KvCache cache_;
  Tensor x_;
};

Json measure_point(const ModuleSettings& s, const ModulePoint& p) {
  torch::manual_seed(0);
  ModuleMeasurement measurement(s, p);
  const auto samples = take_turns(s.route.size(), s.output.repeat, [&](size_t i) {
    return measurement.run(nn::route_from_name(s.route[i]));
  });
  const Tensor first = samples[0].result.to(torch::kFloat32);
  const double tokens = static_cast<double>(s.batch * (p.pass == "decode" ? 1 : p.seq));
  Json rows = Json::array();
  for (size_t i = 0; i < samples.size(); ++i) {
    Json row = bench_row(s.route[i], samples[i]);
    row["tokens_per_second"] = tokens / samples[i].timing.median;
    row["difference"] =
        ((samples[i].result.to(torch::kFloat32) - first).norm() / first.norm().clamp_min(1e-30))
            .item<double>();
    rows.push_back(row);
  }
  return {{"preset", s.preset},       {"parameters", measurement.parameters()},
          {"pass", p.pass},           {"dtype", p.dtype},
          {"mask", p.mask},           {"seq", p.seq},
          {"embed_dim", s.embed_dim}, {"heads", s.heads},
          {"kv_heads", s.kv_heads},   {"batch", s.batch},
          {"rotary", !s.no_rotary},   {"threads", s.threads},
          {"device", s.device},       {"routes", rows}};
}

void print_module_point(const Json& point) {
  print_out("\n{} ({} parameters), {}, {}, {}:\n  N = {}, batch {}, rotary {}\n",
            point["preset"].get<std::string>(), point["parameters"].get<int64_t>(),
            point["pass"].get<std::string>(), point["dtype"].get<std::string>(),
            point["mask"].get<std::string>(), point["seq"].get<int64_t>(),
            point["batch"].get<int64_t>(), point["rotary"].get<bool>() ? "on" : "off");
  const Json& first = point["routes"][0];
  const double first_ms = first["ms"];
  std::vector<BenchColumn> columns = time_columns();
  columns.push_back(number_column("tokens/s", "tokens_per_second", 0));
  columns.push_back(number_column("MiB", "peak_memory_mib", 1));
  columns.push_back({"vs " + first["route"].get<std::string>(), [first_ms](const Json& row) {
                       return fmt::format("{:.2f}x", row["ms"].get<double>() / first_ms);
                     }});
  print_routes(point, "route", columns);
}

void print_module_csv(const Json& points) {
  print_out(
      "preset,pass,dtype,mask,seq,batch,rotary,threads,device,route,ms,ms_fastest,ms_slowest,"
      "tokens_per_second,peak_memory_mib\n");
  for (const Json& p : points) {
    for (const Json& row : p["routes"]) {
      print_out("{},{},{},{},{},{},{},{},{},\"{}\",{:.4f},{:.4f},{:.4f},{:.1f},{:.2f}\n",
                p["preset"].get<std::string>(), p["pass"].get<std::string>(),
                p["dtype"].get<std::string>(), p["mask"].get<std::string>(),
                p["seq"].get<int64_t>(), p["batch"].get<int64_t>(), p["rotary"].get<bool>(),
                p["threads"].get<int64_t>(), p["device"].get<std::string>(),
                row["route"].get<std::string>(), row["ms"].get<double>(),
                row["ms_fastest"].get<double>(), row["ms_slowest"].get<double>(),
                row["tokens_per_second"].get<double>(), row["peak_memory_mib"].get<double>());
    }
  }
}

std::vector<ModulePoint> module_points(const ModuleSettings& s) {
  std::vector<ModulePoint> points;
  for (const int64_t seq : s.seq) {
    for (const auto& dtype : s.dtype) {
      for (const auto& mask : s.mask) {
        for (const auto& pass : s.pass) {
          // Decode runs without the mask, so one mask is enough.
          if (pass == "decode" && mask != s.mask.front()) continue;
          points.push_back({seq, dtype, mask, pass});
        }
      }
    }
  }
  return points;
}

int run_module(ModuleSettings s) {
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  torch::set_num_threads(s.threads);
  for (std::string& name : s.route) name = route_name(nn::route_from_name(name));
  if (s.route.empty()) {
    for (const nn::Route route : nn::routes()) s.route.push_back(route_name(route));
  }
  const auto points = module_points(s);
  return run_sweep(s.output, {.device = s.device,
                              .points = points.size(),
                              .label =
                                  [&](size_t i) {
                                    return fmt::format("N = {} {} {}", points[i].seq,
                                                       points[i].mask, points[i].pass);
                                  },
                              .measure = [&](size_t i) { return measure_point(s, points[i]); },
                              .print = print_module_point,
                              .print_csv = print_module_csv});
}

/// Returns the name of a route as one types it in a list: "two_calls_padded".
std::string typed_route(nn::Route route) {
  std::string out;
  for (const char c : nn::route_name(route)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += c;
    } else if (out.back() != '_') {
      out += '_';
    }
  }
  return out;
}

/// Checks --route: the name of a route with any separators.
std::string check_route(const std::string& name) {
  try {
    nn::route_from_name(name);
    return {};
  } catch (const Error&) {
    std::string known;
    for (const nn::Route route : nn::routes()) {
      known += (known.empty() ? "" : ", ") + typed_route(route);
    }
    return fmt::format("expected one of {}, got '{}'", known, name);
  }
}

}  // namespace

VerbAction add_bench_module(CLI::App& bench) {
  auto* verb = bench.add_subcommand("module", "Time a whole attention layer by every route");
  verb->footer(
      "Example:\n  diffattn bench module --preset microsoft_v1 --seq 1024,4096 \\\n"
      "    --mask causal,left_padding --pass forward,backward,decode");
  auto s = std::make_shared<ModuleSettings>();
  s->threads = torch::get_num_threads();
  std::vector<std::string> presets;
  for (const std::string& name : nn::preset_names()) {
    if (name != "introspective" && name != "dint") presets.push_back(name);
  }
  const auto size = integer_in(1, int64_t{1} << 24);
  verb->add_option("--preset", s->preset, "published attention (default diffllama)")
      ->check(CLI::IsMember(presets));
  verb->add_option("--embed-dim", s->embed_dim, "width of the model (default 512)")->check(size);
  verb->add_option("--heads", s->heads, "heads of the Transformer of equal size (default 8)")
      ->check(size);
  verb->add_option("--kv-heads", s->kv_heads, "its number of kv heads (default: as --heads)")
      ->check(size);
  verb->add_option("--batch", s->batch, "sequences at a time (default 1)")
      ->check(integer_in(1, 65536));
  verb->add_option("--seq", s->seq, "sequence lengths (default 512,2048)")
      ->delimiter(',')
      ->check(size);
  verb->add_option("--dtype", s->dtype, "types (default float32)")
      ->delimiter(',')
      ->check(CLI::IsMember(bench_dtypes()));
  verb->add_option("--mask", s->mask,
                   "keys that a query sees; window is a quarter of them (default causal)")
      ->delimiter(',')
      ->check(CLI::IsMember(kModuleMasks));
  verb->add_option("--pass", s->pass, "passes to time (default forward,backward)")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "backward", "decode"}));
  verb->add_option("--route", s->route, "routes to time: fused,two_calls (default all)")
      ->delimiter(',')
      ->check(CLI::Validator(check_route, ""));
  verb->add_flag("--no-rotary", s->no_rotary, "leave out the rotary embedding of the preset");
  verb->add_option("--threads", s->threads, "threads (default: as torch chooses)")
      ->check(integer_in(1, 1024));
  add_device_option(*verb, s->device);
  add_bench_output(*verb, s->output);
  return [s] { return run_module(*s); };
}

}  // namespace diffattn::app
