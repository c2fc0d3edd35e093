// SPDX-License-Identifier: Apache-2.0
//
// diffattn eval: loss, perplexity and accuracy of a model over a whole data set, and what its
// attention does there.

#include <fmt/core.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "diffattn/io/tokenizer.h"
#include "diffattn/train/language_data.h"
#include "diffattn/train/model_folder.h"
#include "diffattn/train/trainer.h"
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

/// Running means of what was measured batch by batch.
struct Totals {
  double loss = 0, seconds = 0;
  int64_t right = 0, tokens = 0, batches = 0;
  std::map<std::string, double> attention;  // sums over statistics batches
  int64_t attention_batches = 0;

  void add(const train::Evaluation& one) {
    loss += one.loss * static_cast<double>(one.tokens);
    right += std::llround(one.accuracy * static_cast<double>(one.tokens));
    tokens += one.tokens;
    seconds += one.seconds;
    ++batches;
  }
  double mean_loss() const { return loss / static_cast<double>(std::max<int64_t>(1, tokens)); }
  double accuracy() const {
    return static_cast<double>(right) / static_cast<double>(std::max<int64_t>(1, tokens));
  }
};

/// One batch that was read already, as a source.
class Single : public train::BatchSource {
 public:
  explicit Single(train::Batch batch) : batch_(std::move(batch)) {}
  train::Batch next() override { return batch_; }
  std::string position() const override { return ""; }
  void seek(const std::string&) override {}

 private:
  train::Batch batch_;
};

int print(const Totals& totals, const EvalOptions& options) {
  const double rate = static_cast<double>(totals.tokens) / totals.seconds;
  Json attention = Json::object();
  for (const auto& [name, sum] : totals.attention) {
    attention[name] = sum / static_cast<double>(totals.attention_batches);
  }
  if (options.json) {
    const Json result{{"loss", totals.mean_loss()},    {"perplexity", std::exp(totals.mean_loss())},
                      {"accuracy", totals.accuracy()}, {"tokens", totals.tokens},
                      {"tokens_per_second", rate},     {"attention", attention}};
    fmt::print("{}\n", result.dump(2));
    return 0;
  }
  fmt::print(
      "loss        {:.5f}\nperplexity  {:.3f}\naccuracy    {:.4f}\ntokens      {}  ({:.0f}/s)\n",
      totals.mean_loss(), std::exp(totals.mean_loss()), totals.accuracy(), totals.tokens, rate);
  if (!attention.empty()) fmt::print("\n");
  for (const auto& [name, value] : attention.items()) {
    fmt::print("{:<28} {:>8.4f}\n", name, value.get<double>());
  }
  return 0;
}

int run_eval(const EvalOptions& options) {
  const nn::CausalLM model = train::load_causal_lm(options.model);
  const io::Tokenizer tokenizer = io::Tokenizer::read(options.model);
  train::RunConfig config;
  config.train.device = options.device;
  config.train.dtype = options.dtype;
  const data::Corpus corpus =
      data::read_corpus(options.data, tokenizer, {.skip_bad = options.skip_bad, .progress = {}});
  data::RowOptions rows;
  rows.seq_len = options.seq_len > 0 ? options.seq_len : model->config.max_position_embeddings;
  rows.batch_size = options.batch_size;
  rows.shuffle = false;
  rows.endless = false;
  train::CorpusBatches batches(corpus, rows);
  train::Trainer trainer(model, config);
  Totals totals;
  const int64_t per_batch = rows.seq_len * rows.batch_size;
  Progress progress("eval", (static_cast<int64_t>(corpus.tokens()) + per_batch - 1) / per_batch);
  for (train::Batch batch = batches.next(); batch.ids.defined(); batch = batches.next()) {
    Single single(batch);
    totals.add(trainer.evaluate(single, 1));
    if (totals.attention_batches < options.stats_batches) {
      for (const auto& [name, value] : trainer.attention_statistics(batch)) {
        totals.attention[name] += value;
      }
      ++totals.attention_batches;
    }
    progress.step(fmt::format("loss {:.4f}", totals.mean_loss()));
  }
  progress.clear();
  return print(totals, options);
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
