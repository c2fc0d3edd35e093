// SPDX-License-Identifier: Apache-2.0
//
// diffattn bench generate: times greedy generation with a KV cache by language models, and on a CPU
// the bare reading of their weights, which bounds the speed of one row.

#include <fmt/core.h>
#include <torch/torch.h>

#include "apps/diffattn/bench/language_model.h"
#include "apps/diffattn/bench/measure/peak_memory.h"
#include "apps/diffattn/bench/measure/weight_read.h"
#include "apps/diffattn/bench/sweep.h"
#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/infer/generator.h"
#include "diffattn/models/model_folder.h"
#include "train/new_model.h"

namespace diffattn::app {
namespace {

struct GenerationSettings {
  BenchModel model;
  std::vector<int64_t> prompt{128};
  int64_t batch = 1, new_tokens = 128;
  BenchOutput output;
};

/// Times of one generation, in seconds.
struct GenerationTime {
  double first = 0, all = 0;  // first new token; all of them
};

GenerationTime time_generation(infer::Generator& generator,
                               const std::vector<std::vector<int64_t>>& prompts, int64_t count,
                               bool on_gpu) {
  const auto seconds = [&](int64_t tokens) {
    return wall_seconds(
        on_gpu, [&] { generator.generate(prompts, nn::SamplingOptions().max_new_tokens(tokens)); });
  };
  return {seconds(1), seconds(count)};
}

std::vector<nn::CausalLM> make_models(const GenerationSettings& s, int64_t tokens) {
  std::vector<nn::CausalLM> models;
  const auto dtype = bench_dtype(s.model.dtype);
  for (const std::string& name : s.model.attention) {
    models.push_back(s.model.folder.empty()
                         ? train::new_model(s.model.run_config(name, s.batch, tokens))
                         : models::load_causal_lm(s.model.folder, dtype));
    models.back()->to(torch::Device(s.model.device), dtype);
    models.back()->eval();
  }
  return models;
}

/// Adds to a row the bound that reading the weights sets.
void add_bound(Json& row, const nn::CausalLM& model, std::vector<double> seconds, int64_t batch) {
  seconds.erase(seconds.begin());  // the warm-up
  const double read = summarise(std::move(seconds)).median;
  row["weight_bytes"] = weight_bytes(model);
  row["ms_read_weights"] = read * 1e3;
  row["bound_tokens_per_second"] = static_cast<double>(batch) / read;
  row["share_of_bound"] = nullptr;
  if (!row["ms_per_token"].is_null()) {
    row["share_of_bound"] = read * 1e3 / row["ms_per_token"].get<double>();
  }
}

Json measure_generation(const GenerationSettings& s, int64_t length) {
  const std::vector<nn::CausalLM> models = make_models(s, length + s.new_tokens);
  std::vector<infer::Generator> generators(models.begin(), models.end());
  std::vector<std::vector<int64_t>> prompts(static_cast<size_t>(s.batch));
  for (auto& prompt : prompts) {
    const auto ids = torch::randint(s.model.vocab, {length}, torch::kLong);
    prompt.assign(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + length);
  }
  std::vector<std::vector<double>> first(generators.size()), read(generators.size());
  const auto samples = take_turns(generators.size(), s.output.repeat, [&](size_t i) {
    const PeakMemory peak(s.model.on_gpu());
    const GenerationTime time =
        time_generation(generators[i], prompts, s.new_tokens, s.model.on_gpu());
    first[i].push_back(time.first);
    if (!s.model.on_gpu()) read[i].push_back(read_weights(models[i]));
    return BenchSample{time.all, peak.bytes(), {}};
  });
  Json rows = Json::array();
  for (size_t i = 0; i < generators.size(); ++i) {
    Json row = bench_row(s.model.attention[i], samples[i]);
    first[i].erase(first[i].begin());  // the warm-up
    const double all = samples[i].timing.median, begin = summarise(first[i]).median;
    row["ms_first_token"] = begin * 1e3;
    row["tokens_per_second"] = static_cast<double>(s.batch * s.new_tokens) / all;
    row["ms_per_token"] = nullptr;  // without the first token; null if the prompt's noise hides it
    if (s.new_tokens > 1 && all > begin) {
      row["ms_per_token"] = (all - begin) * 1e3 / static_cast<double>(s.new_tokens - 1);
    }
    if (!s.model.on_gpu()) add_bound(row, models[i], read[i], s.batch);
    rows.push_back(row);
  }
  Json point{{"batch", s.batch}, {"prompt", length}, {"new_tokens", s.new_tokens}};
  point.update(s.model.description());
  point["routes"] = rows;
  return point;
}

void print_generation(const Json& point) {
  print_out("\ngeneration, {}: {} x {} tokens after {}, {}, {}\n",
            point["dtype"].get<std::string>(), point["batch"].get<int64_t>(),
            point["new_tokens"].get<int64_t>(), point["prompt"].get<int64_t>(),
            thread_text(point["threads"].get<int64_t>()), point["device"].get<std::string>());
  std::vector<BenchColumn> columns = time_columns();
  columns.push_back(number_column("tokens/s", "tokens_per_second", 1));
  columns.push_back(number_column("first ms", "ms_first_token", 3));
  columns.push_back(number_column("ms per token", "ms_per_token", 3));
  print_routes(point, "attention", columns);
  for (const Json& row : point["routes"]) {
    if (!row.contains("share_of_bound") || row["share_of_bound"].is_null()) continue;
    print_out("  {}: reading {:.1f} MB of weights takes {:.3f} ms; {:.0f} % of that bound\n",
              row["route"].get<std::string>(), row["weight_bytes"].get<double>() * 1e-6,
              row["ms_read_weights"].get<double>(), row["share_of_bound"].get<double>() * 100.0);
  }
}

void print_generation_csv(const Json& points) {
  print_out("batch,prompt,new_tokens,attention,ms,ms_first_token,tokens_per_second\n");
  for (const Json& p : points) {
    for (const Json& row : p["routes"]) {
      print_out("{},{},{},{},{:.3f},{:.3f},{:.2f}\n", p["batch"].get<int64_t>(),
                p["prompt"].get<int64_t>(), p["new_tokens"].get<int64_t>(),
                row["route"].get<std::string>(), row["ms"].get<double>(),
                row["ms_first_token"].get<double>(), row["tokens_per_second"].get<double>());
    }
  }
}

int run_bench_generate(const GenerationSettings& s) {
  torch::set_num_threads(s.model.threads);
  return run_sweep(s.output,
                   {.device = s.model.device,
                    .points = s.prompt.size(),
                    .label = [&](size_t i) { return fmt::format("prompt {}", s.prompt[i]); },
                    .measure = [&](size_t i) { return measure_generation(s, s.prompt[i]); },
                    .print = print_generation,
                    .print_csv = print_generation_csv});
}

}  // namespace

VerbAction add_bench_generate(CLI::App& bench) {
  auto* verb = bench.add_subcommand("generate", "Time greedy generation with a KV cache");
  verb->footer("Example:\n  diffattn bench generate --threads 2 --prompt 128 --new-tokens 128");
  auto s = std::make_shared<GenerationSettings>();
  add_bench_model(*verb, s->model);
  const auto size = integer_in(1, int64_t{1} << 24);
  verb->add_option("--prompt", s->prompt, "prompt lengths (default 128)")
      ->delimiter(',')
      ->check(size);
  verb->add_option("--new-tokens", s->new_tokens, "tokens to generate (default 128)")->check(size);
  verb->add_option("--batch", s->batch, "prompts at a time (default 1)")->check(size);
  add_bench_output(*verb, s->output);
  return [s] {
    s->model.take_folder();
    return run_bench_generate(*s);
  };
}

}  // namespace diffattn::app
