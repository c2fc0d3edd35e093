// SPDX-License-Identifier: Apache-2.0
//
// diffattn bench step: times whole training steps (forward, loss, backward, clipping, AdamW) of
// language models on random tokens.

#include <fmt/ranges.h>
#include <torch/torch.h>

#include "apps/diffattn/bench/language_model.h"
#include "apps/diffattn/bench/measure/peak_memory.h"
#include "apps/diffattn/bench/step_profile.h"
#include "apps/diffattn/bench/sweep.h"
#include "apps/diffattn/machine/heap.h"
#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/parallel/collective.h"
#include "diffattn/train/trainer.h"
#include "train/new_model.h"

namespace diffattn::app {
namespace {

struct StepSettings {
  BenchModel model;
  std::vector<int64_t> seq{2048};
  int64_t batch = 1;  // rows of all processes together
  std::string shard = train::RunConfig().train.shard;
  bool checkpointing = false, profile = false;
  std::vector<std::string> keep_attention{train::RunConfig().train.keep_attention};
  BenchOutput output;
};

/// A source of one random batch, always the same, on the device of the model.
class RandomTokens : public train::BatchSource {
 public:
  RandomTokens(const BenchModel& model, int64_t batch, int64_t seq) {
    const auto ids =
        torch::randint(model.vocab, {batch, seq + 1}, torch::kLong).to(torch::Device(model.device));
    batch_.ids = ids.slice(1, 0, seq).contiguous();
    batch_.labels = ids.slice(1, 1).contiguous();
  }
  train::Batch next() override { return batch_; }
  std::string position() const override { return "0"; }
  void seek(const std::string&) override {}

 private:
  train::Batch batch_;
};

/// A model with everything that its training steps need.
struct StepModel {
  StepModel(const StepSettings& s, const std::string& attention, const std::string& keep,
            int64_t seq)
      : name(s.keep_attention.size() > 1 ? attention + " keeping " + keep : attention),
        config(configured(s, attention, keep, seq)),
        trainer(train::language_model(train::new_model(config)), config, parallel::world()),
        source(s.model, s.batch / parallel::world()->size(), seq) {}

  static train::RunConfig configured(const StepSettings& s, const std::string& attention,
                                     const std::string& keep, int64_t seq) {
    train::RunConfig result = s.model.run_config(attention, s.batch, seq);
    result.train.activation_checkpointing = s.checkpointing;
    result.train.keep_attention = keep;
    result.train.shard = s.shard;
    return result;
  }

  std::string name;
  train::RunConfig config;
  train::Trainer trainer;
  RandomTokens source;
  train::StepReport last;
};

/// Times updates as a run does them: on a GPU several in a row, each begun before the host has
/// read the result of the last one.
BenchSample run_step(StepModel& model, bool on_gpu) {
  const int64_t updates = on_gpu ? 4 : 1;
  train::Trainer& trainer = model.trainer;
  trainer.optimizer().zero_grad();
  const PeakMemory peak(on_gpu);
  BenchSample sample;
  sample.seconds = wall_seconds(on_gpu, [&] {
    for (int64_t i = 0; i < updates; ++i) {
      trainer.begin(model.source);
      if (i > 0) model.last = trainer.finish();
    }
    model.last = trainer.finish();
  });
  sample.seconds /= static_cast<double>(updates);
  // `peak` does not see weights and both moments, 12 bytes per parameter, which exist already; nor
  // the bfloat16 copies of mixed precision on a GPU.
  const bool copies = on_gpu && model.config.train.dtype == "bfloat16";
  sample.memory = peak.bytes() + (copies ? 14 : 12) * trainer.task_model().parameter_count();
  return sample;
}

/// Measures the host memory of one more step. We trim the heap first, because the step would reuse
/// pages that earlier steps freed.
int64_t step_memory(StepModel& model) {
  model.trainer.optimizer().zero_grad();
  trim_freed_memory();
  return run_step(model, /*on_gpu=*/false).memory;
}

Json measure_step(const StepSettings& s, int64_t seq) {
  std::vector<std::unique_ptr<StepModel>> models;
  for (const std::string& name : s.model.attention) {
    for (const std::string& keep : s.keep_attention) {
      models.push_back(std::make_unique<StepModel>(s, name, keep, seq));
    }
  }
  auto samples = take_turns(models.size(), s.output.repeat,
                            [&](size_t i) { return run_step(*models[i], s.model.on_gpu()); });
  Json rows = Json::array();
  for (size_t i = 0; i < models.size(); ++i) {
    if (!s.model.on_gpu()) samples[i].memory = step_memory(*models[i]);
    Json row = bench_row(models[i]->name, samples[i]);
    const double seconds = samples[i].timing.median;
    row["parameters"] = models[i]->trainer.task_model().parameter_count();
    row["tokens_per_second"] = static_cast<double>(s.batch * seq) / seconds;
    row["tflops"] = models[i]->last.flops / seconds / 1e12;
    row["loss"] = models[i]->last.loss;
    if (s.profile) {
      row["profile"] = profile_steps(models[i]->trainer, models[i]->source, s.model.on_gpu());
    }
    rows.push_back(row);
  }
  Json point{{"batch", s.batch}, {"seq", seq}};
  point.update(s.model.description());
  point["routes"] = rows;
  return point;
}

void print_step(const Json& point) {
  print_out("\ntraining step, {}: {} x {} tokens, {}, {}\n", point["dtype"].get<std::string>(),
            point["batch"].get<int64_t>(), point["seq"].get<int64_t>(),
            thread_text(point["threads"].get<int64_t>()), point["device"].get<std::string>());
  std::vector<BenchColumn> columns = time_columns();
  columns.insert(columns.begin(), number_column("parameters", "parameters", 0));
  columns.push_back(number_column("tokens/s", "tokens_per_second", 0));
  columns.push_back(number_column("TFLOP/s", "tflops", 3));
  columns.push_back(number_column("MiB", "peak_memory_mib", 0));
  print_routes(point, "attention", columns);
  for (const Json& row : point["routes"]) {
    if (!row.contains("profile")) continue;
    print_out("  longest parts of a step of {}:\n", row["route"].get<std::string>());
    print_step_profile(row["profile"]);
  }
}

void print_step_csv(const Json& points) {
  print_out("batch,seq,attention,ms,ms_fastest,ms_slowest,tokens_per_second,peak_memory_mib\n");
  for (const Json& p : points) {
    for (const Json& row : p["routes"]) {
      print_out("{},{},{},{:.3f},{:.3f},{:.3f},{:.1f},{:.1f}\n", p["batch"].get<int64_t>(),
                p["seq"].get<int64_t>(), row["route"].get<std::string>(), row["ms"].get<double>(),
                row["ms_fastest"].get<double>(), row["ms_slowest"].get<double>(),
                row["tokens_per_second"].get<double>(), row["peak_memory_mib"].get<double>());
    }
  }
}

/// Throws Error if the processes of a job would run different updates, or numbers of them.
void check_same(parallel::Collective& world, const StepSettings& s) {
  const BenchModel& m = s.model;
  const std::string model =
      fmt::format("{} {} {} {} {} {} {} {} {} {}", m.folder, fmt::join(m.attention, ","), m.hidden,
                  m.intermediate, m.layers, m.heads, m.kv_heads, m.vocab, m.dtype, m.device);
  parallel::check_same(
      world, "the arguments of bench step",
      fmt::format("{} {} {} {} {} {} {} {}", model, s.batch, s.shard, fmt::join(s.seq, ","),
                  s.checkpointing, fmt::join(s.keep_attention, ","), s.profile, s.output.repeat));
}

int run_bench_step(const StepSettings& s) {
  const auto world = parallel::world();
  check_same(*world, s);
  if (s.batch % world->size() != 0) {
    throw train::ConfigError(fmt::format("--batch: expected a multiple of the {} processes, got {}",
                                         world->size(), s.batch));
  }
  torch::set_num_threads(s.model.threads);
  if (s.shard != "none") {
    return_freed_memory();
  } else if (!s.checkpointing) {
    keep_freed_memory();
  }
  return run_sweep(s.output,
                   {.device = s.model.device,
                    .points = s.seq.size(),
                    .head = {{"flop", "6 per matrix element and token, 12 per pair and width"}},
                    .label = [&](size_t i) { return fmt::format("N = {}", s.seq[i]); },
                    .measure = [&](size_t i) { return measure_step(s, s.seq[i]); },
                    .print = print_step,
                    .print_csv = print_step_csv});
}

}  // namespace

VerbAction add_bench_step(CLI::App& bench) {
  auto* verb = bench.add_subcommand("step", "Time training steps of language models");
  verb->footer(
      "Example:\n  diffattn bench step --threads 2 --seq 2048 --attention diffllama,transformer");
  auto s = std::make_shared<StepSettings>();
  add_bench_model(*verb, s->model);
  verb->get_option("--dtype")->description(
      "type; bfloat16 trains in mixed precision (default float32)");
  const auto size = integer_in(1, int64_t{1} << 24);
  verb->add_option("--seq", s->seq, "sequence lengths (default 2048)")->delimiter(',')->check(size);
  verb->add_option("--batch", s->batch, "sequences of a step, over all processes (default 1)")
      ->check(size);
  verb->add_option("--shard", s->shard, "what the processes divide among them (default none)")
      ->check(CLI::IsMember({"none", "optimizer", "gradients", "parameters"}));
  verb->add_flag("--checkpointing", s->checkpointing, "use activation checkpointing");
  verb->add_option("--keep-attention", s->keep_attention,
                   "what activation checkpointing keeps of the attention (default results)")
      ->delimiter(',')
      ->needs("--checkpointing")
      ->check(CLI::IsMember({"results", "sums", "nothing"}));
  CLI::Option* profile = verb->add_flag("--profile", s->profile, "also profile more steps");
  add_bench_output(*verb, s->output);
  profile->excludes(verb->get_option("--csv"));
  return [s] {
    s->model.take_folder();
    return run_bench_step(*s);
  };
}

}  // namespace diffattn::app
