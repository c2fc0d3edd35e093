// SPDX-License-Identifier: Apache-2.0
//
// diffattn eval: loss, perplexity and accuracy of a model over a whole data set, and what its
// attention does there.

#include <fmt/core.h>
#include <torch/torch.h>

#include <map>
#include <nlohmann/json.hpp>

#include "diffattn/io/tokenizer.h"
#include "diffattn/train/evaluate.h"
#include "diffattn/train/language_data.h"
#include "diffattn/train/model_folder.h"
#include "progress.h"
#include "verbs.h"

namespace diffattn::app {
namespace {

using Json = nlohmann::ordered_json;

struct EvalOptions {
  std::string model, data, device = "cpu", dtype = "float32";
  int64_t seq_len = 0, batch_size = 8, stats_batches = 1;
  bool json = false, skip_bad = false;
};

/// Means of attention statistics over batches.
struct Statistics {
  std::map<std::string, double> sums;
  int64_t batches = 0;

  void add(const train::Values& values) {
    for (const auto& [name, value] : values) sums[name] += value;
    ++batches;
  }
};

int print(const train::Evaluation& total, const Statistics& statistics, bool json) {
  const double rate = static_cast<double>(total.tokens) / total.seconds;
  Json attention = Json::object();
  for (const auto& [name, sum] : statistics.sums) {
    attention[name] = sum / static_cast<double>(statistics.batches);
  }
  if (json) {
    const Json result{{"loss", total.loss()},         {"perplexity", total.perplexity()},
                      {"accuracy", total.accuracy()}, {"tokens", total.tokens},
                      {"tokens_per_second", rate},    {"attention", attention}};
    fmt::print("{}\n", result.dump(2));
    return 0;
  }
  fmt::print(
      "loss        {:.5f}\nperplexity  {:.3f}\naccuracy    {:.4f}\ntokens      {}  ({:.0f}/s)\n",
      total.loss(), total.perplexity(), total.accuracy(), total.tokens, rate);
  if (!attention.empty()) fmt::print("\n");
  for (const auto& [name, value] : attention.items()) {
    fmt::print("{:<28} {:>8.4f}\n", name, value.get<double>());
  }
  return 0;
}

int run_eval(const EvalOptions& options) {
  nn::CausalLM model = train::load_causal_lm(options.model);
  const io::Tokenizer tokenizer = io::Tokenizer::read(options.model);
  model->to(torch::Device(options.device));
  const data::Corpus corpus =
      data::read_corpus(options.data, tokenizer, {.skip_bad = options.skip_bad, .progress = {}});
  data::RowOptions rows;
  rows.seq_len = options.seq_len > 0 ? options.seq_len : model->config.max_position_embeddings;
  rows.batch_size = options.batch_size;
  rows.shuffle = false;
  rows.endless = false;
  train::CorpusBatches batches(corpus, rows);
  train::Evaluation total;
  Statistics statistics;
  const int64_t per_batch = rows.seq_len * rows.batch_size;
  Progress progress("eval", (static_cast<int64_t>(corpus.tokens()) + per_batch - 1) / per_batch);
  for (train::Batch batch = batches.next(); batch.ids.defined(); batch = batches.next()) {
    total += train::evaluate(*model, batch, options.dtype);
    if (statistics.batches < options.stats_batches) {
      statistics.add(train::attention_statistics(*model, batch, options.dtype));
    }
    progress.step(fmt::format("loss {:.4f}", total.loss()));
  }
  progress.clear();
  return print(total, statistics, options.json);
}

}  // namespace

Run add_eval(CLI::App& app) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* verb = app.add_subcommand("eval", "Loss and accuracy of a model on a data set");
  verb->add_option("--model", options->model, "model folder with a tokenizer")->required();
  verb->add_option("--data", options->data, "text file, folder, JSONL or token file")->required();
  verb->add_option("--seq-len", options->seq_len, "tokens per row (the model's maximum)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  verb->add_option("--batch-size", options->batch_size, "rows at a time (8)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->add_option("--stats-batches", options->stats_batches,
                   "batches over which attention statistics are taken (1)")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--dtype", options->dtype, "float32 or bfloat16 (float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  verb->add_option("--device", options->device, "cpu or cuda (cpu)");
  verb->add_flag("--skip-bad", options->skip_bad, "skip and count bad lines of JSONL data");
  verb->add_flag("--json", options->json, "one JSON object on standard output");
  verb->footer("Example:\n  diffattn eval --model runs/a/model --data valid.txt");
  return [options] { return run_eval(*options); };
}

}  // namespace diffattn::app
