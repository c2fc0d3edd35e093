// SPDX-License-Identifier: Apache-2.0
//
// diffattn eval: measures loss, perplexity, accuracy and attention statistics of a model over a
// data set.

#include <fmt/core.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/model_option.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/data_warnings.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/terminal/text_table.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/io/error.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/parallel/collective.h"
#include "diffattn/train/task_data.h"
#include "train/language_data.h"
#include "train/tasks/evaluator.h"
#include "train/tasks/round_weights.h"

namespace diffattn::app {
namespace {

struct EvalOptions {
  std::string model, data, device = "cpu", dtype = "float32";
  std::string quantize;  // "int8" or "int4"; empty: not
  bool quantize_activations = false;
  int64_t seq_len = 0, batch_size = 8, stats_batches = 1;
  bool json = false, skip_bad = false;
};

/// Counts of the data that was not measured.
struct Unmeasured {
  uint64_t skipped_lines = 0;  // bad lines
  uint64_t truncated = 0;      // texts that were too long
};

/// Results of the same model on the same data with rounded weights and, if asked, activations.
struct Rounded {
  std::string weights, activations;  // "int8" or "int4"; activations also "exact"
  int64_t matrices = 0;
  train::Evaluation total;
};

/// True if labels of whole texts are measured, which have no perplexity, instead of tokens.
bool measures_classes(const train::Evaluator& evaluator) {
  return evaluator.confusion().classes() > 0;
}

void add_measures(Json& result, const train::Evaluation& sums, bool classes) {
  result["loss"] = sums.loss();
  if (!classes) result["perplexity"] = sums.perplexity();
  result["accuracy"] = sums.accuracy();
}

Json rounded_json(const Rounded& rounded, const train::Evaluation& exact, bool classes) {
  Json result{{"weights", rounded.weights},
              {"activations", rounded.activations},
              {"matrices", rounded.matrices},
              {"loss_increase", rounded.total.loss() - exact.loss()}};
  add_measures(result, rounded.total, classes);
  return result;
}

/// Returns the values by name, without those that are NaN.
Json named_values(const train::Values& values) {
  Json result = Json::object();
  for (const auto& [name, value] : values) {
    if (!std::isnan(value)) result[name] = value;
  }
  return result;
}

Json buckets_json(const train::Evaluator& evaluator) {
  Json all = Json::array();
  for (const train::LengthBucket& bucket : evaluator.buckets()) {
    Json one{{"above", bucket.from}, {"up_to", bucket.to}, {"tokens", bucket.sums.tokens}};
    add_measures(one, bucket.sums, measures_classes(evaluator));
    one["attention"] = named_values(bucket.attention);
    all.push_back(std::move(one));
  }
  return all;
}

/// Statistics of every layer, or of every path of a layer.
struct LayerTable {
  std::vector<std::string> statistics;
  std::vector<std::pair<std::string, std::map<std::string, double>>> layers;  // "3", "3.path.1"
};

/// Groups values named "layer.3.entropy" or "layer.3.path.1.entropy" by layer.
LayerTable layer_table(const train::Values& values) {
  LayerTable table;
  auto& [statistics, layers] = table;
  for (const auto& [name, value] : values) {
    if (std::isnan(value)) continue;
    const size_t begin = name.find('.') + 1, end = name.rfind('.');
    const std::string layer = name.substr(begin, end - begin), statistic = name.substr(end + 1);
    if (layers.empty() || layers.back().first != layer) layers.push_back({layer, {}});
    layers.back().second[statistic] = value;
    if (std::ranges::find(statistics, statistic) == statistics.end()) {
      statistics.push_back(statistic);
    }
  }
  return table;
}

void print_layers(const train::Values& values) {
  const auto [statistics, layers] = layer_table(values);
  if (layers.empty()) return;
  TextTable table{.lines = {fmt::format("{:<8}", "layer")}, .marks = {""}, .columns = {}};
  for (const auto& [layer, row] : layers) {
    table.lines.push_back(fmt::format("{:<8}", layer));
    table.marks.emplace_back();
  }
  for (const std::string& name : statistics) {
    TextTable::Column column{statistic_heading(name), {}};
    for (const auto& [layer, row] : layers) {
      const auto found = row.find(name);
      column.cells.push_back(found == row.end() ? "-" : fmt::format("{:.4f}", found->second));
    }
    table.columns.push_back(std::move(column));
  }
  print_out("\n");
  print_table(table, 6, 2);
}

void print_rounded(const Rounded& rounded, const train::Evaluation& exact) {
  print_out("\n{:<8} {:<12} {:>9}  {:>8}  {:>8}\n", "weights", "activations", "loss", "change",
            "accuracy");
  print_out("{:<8} {:<12} {:>9.5f}  {:>8}  {:>8.4f}\n", "exact", "exact", exact.loss(), "",
            exact.accuracy());
  print_out("{:<8} {:<12} {:>9.5f}  {:>+8.5f}  {:>8.4f}\n", rounded.weights, rounded.activations,
            rounded.total.loss(), rounded.total.loss() - exact.loss(), rounded.total.accuracy());
}

void print_evaluation(const train::Evaluator& evaluator) {
  const train::Evaluation& total = evaluator.total();
  const bool classes = measures_classes(evaluator);
  const char* const counted = classes ? "labels" : "tokens";
  print_out("loss        {:.5f}\n", total.loss());
  if (!classes) print_out("perplexity  {}\n", perplexity_text(total.perplexity(), 3));
  print_out("accuracy    {:.4f}\n", total.accuracy());
  print_out("{:<11} {}  ({:.0f}/s)\n", counted, total.tokens,
            static_cast<double>(total.tokens) / total.seconds);
  if (classes) print_out("macro-F1    {:.4f}\n", evaluator.confusion().macro_f1());
  if (evaluator.bytes() > 0) print_out("bits/byte   {:.5f}\n", evaluator.bits_per_byte());
  print_out("\n{:>16}  {:>10}  {:>8}  {:>8}\n", "length", counted, "loss", "accuracy");
  for (const train::LengthBucket& bucket : evaluator.buckets()) {
    print_out("{:>16}  {:>10}  {:>8.4f}  {:>8.4f}\n",
              fmt::format("{} to {}", bucket.from + 1, bucket.to), bucket.sums.tokens,
              bucket.sums.loss(), bucket.sums.accuracy());
  }
  const Json attention = named_values(evaluator.attention());
  if (!attention.empty()) print_out("\n");
  for (const auto& [name, value] : attention.items()) {
    print_out("{:<16} {:>8.4f}\n", name, value.get<double>());
  }
  print_layers(evaluator.layer_attention());
}

int report_evaluation(const train::Evaluator& evaluator, const std::optional<Rounded>& rounded,
                      const Unmeasured& unmeasured, bool json) {
  const train::Evaluation& total = evaluator.total();
  if (!json) {
    print_evaluation(evaluator);
    if (rounded) print_rounded(*rounded, total);
    return 0;
  }
  Json attention = named_values(evaluator.attention());
  attention.update(named_values(evaluator.layer_attention()));
  const bool classes = measures_classes(evaluator);
  Json result;
  add_measures(result, total, classes);
  result.update({{"tokens", total.tokens},
                 {"tokens_per_second", static_cast<double>(total.tokens) / total.seconds},
                 {"skipped_lines", unmeasured.skipped_lines},
                 {"truncated", unmeasured.truncated},
                 {"buckets", buckets_json(evaluator)},
                 {"attention", attention}});
  if (classes) result["macro_f1"] = evaluator.confusion().macro_f1();
  if (evaluator.bytes() > 0) {
    result["bytes"] = evaluator.bytes();
    result["bits_per_byte"] = evaluator.bits_per_byte();
  }
  if (rounded) result["quantized"] = rounded_json(*rounded, total, classes);
  print_json(result);
  return 0;
}

bool overflows(const train::Evaluation& total) {
  return total.tokens > 0 && !std::isfinite(total.loss());
}

/// Prints on rank 0 that the model overflows, and returns the exit code. `rounding` names the
/// rounded weights, if only these overflow.
int report_overflow(const EvalOptions& options, const train::Evaluation& total, bool speaks,
                    const std::string& rounding = "") {
  if (!speaks) return kNonFiniteLoss;
  std::string advice = "; train it with a lower learning rate";
  if (!rounding.empty()) advice = "; without --quantize it was finite";
  if (options.dtype != "float32") advice = " " + options.dtype + "; try --dtype float32";
  print_note(
      "diffattn: {}: the loss{} was not finite within the first {} labels, because numbers in "
      "the model overflow{}\n",
      options.model, rounding.empty() ? "" : " with " + rounding + " weights", total.tokens,
      advice);
  return kNonFiniteLoss;
}

/// Returns the next batch of the data, and a batch without ids at the end.
using NextBatch = std::function<train::Batch()>;

/// A model with the batches to evaluate it on.
struct EvalData {
  std::shared_ptr<train::TaskModel> model;
  NextBatch next;
  int64_t batches = 0;
  Unmeasured unmeasured;
};

EvalData language_evaluation(const EvalOptions& options, const io::Tokenizer& tokenizer) {
  nn::CausalLM model = models::load_causal_lm(options.model);
  data::ReadReport report;
  const data::Corpus corpus = data::read_corpus(
      options.data, tokenizer, {.skip_bad = options.skip_bad, .progress = {}}, &report);
  data::RowOptions rows;
  rows.seq_len = options.seq_len > 0 ? options.seq_len : model->config.max_position_embeddings;
  rows.batch_size = options.batch_size;
  rows.shuffle = false;
  rows.endless = false;
  const int64_t per_batch = rows.seq_len * rows.batch_size;
  auto batches = std::make_shared<train::CorpusBatches>(corpus, rows);
  return {train::language_model(std::move(model)),
          [batches] { return batches->next(); },
          (static_cast<int64_t>(corpus.tokens()) + per_batch - 1) / per_batch,
          {.skipped_lines = report.skipped}};
}

/// Loads a classifier with labelled texts, or an encoder-decoder with documents and summaries.
EvalData example_evaluation(const EvalOptions& options, const nn::ModelConfig& config,
                            const io::Tokenizer& tokenizer) {
  const bool classes = config.kind != nn::ModelKind::kEncoderDecoder;
  data::ExampleOptions reading;
  reading.skip_bad = options.skip_bad;
  reading.max_source_tokens =
      static_cast<size_t>(options.seq_len > 0 ? options.seq_len : config.max_position_embeddings);
  reading.max_target_tokens = static_cast<size_t>(config.max_position_embeddings);
  reading.label_names = config.labels;
  data::ReadReport report;
  auto set = std::make_shared<data::ExampleSet>(data::read_examples(
      options.data, classes ? io::RecordKind::kLabelled : io::RecordKind::kSummary, tokenizer,
      reading, &report));
  const auto size = std::ssize(set->examples), per_batch = options.batch_size;
  const int64_t begin = config.decoder_start_token_id.value_or(0);
  const NextBatch next = [set, size, per_batch, classes, begin, at = int64_t{0}]() mutable {
    data::ExampleSet part;
    for (; at < size && std::ssize(part.examples) < per_batch; ++at) {
      part.examples.push_back(set->examples[static_cast<size_t>(at)]);
    }
    if (part.examples.empty()) return train::Batch{};
    return classes ? train::classification_batch(part) : train::summarization_batch(part, begin);
  };
  auto model = classes ? train::classifier_model(train::load_classifier(options.model))
                       : train::summarizer_model(models::load_encoder_decoder(options.model));
  return {std::move(model),
          next,
          (size + per_batch - 1) / per_batch,
          {.skipped_lines = report.skipped, .truncated = set->truncated}};
}

/// Evaluates the batches of this rank. Rank 0 takes the first ones, for their attention statistics;
/// the ranks take the others in turn.
void evaluate_batches(const EvalOptions& options, const EvalData& data, parallel::Collective& world,
                      train::Evaluator& evaluator) {
  std::optional<ProgressBar> bar;
  if (world.rank() == 0) bar.emplace("eval", data.batches);
  int64_t number = 0;
  for (train::Batch batch = data.next(); batch.ids.defined(); batch = data.next(), ++number) {
    const train::Evaluation& total = evaluator.total();
    const bool own = (number < options.stats_batches ? 0 : number % world.size()) == world.rank();
    if (own) evaluator.add(batch);
    if (overflows(total)) break;
    if (bar) bar->step(fmt::format("loss {:.4f}", total.loss()));
  }
  if (bar) bar->clear();
  if (world.size() > 1) evaluator.sum(world);
}

/// Measures the model with rounded weights.
Rounded evaluate_rounded(const EvalOptions& options, EvalData data, parallel::Collective& world) {
  Rounded rounded;
  const int64_t bits = options.quantize == "int8" ? 8 : 4;
  rounded.weights = options.quantize;
  rounded.activations = options.quantize_activations ? options.quantize : "exact";
  rounded.matrices = train::round_weights(*data.model->module(), bits);
  data.model->module()->to(torch::Device(options.device));
  EvalOptions without_statistics = options;
  without_statistics.stats_batches = 0;
  train::Evaluator evaluator(*data.model, options.dtype, 0);
  if (options.quantize_activations) evaluator.round_activations(bits);
  evaluate_batches(without_statistics, data, world, evaluator);
  rounded.total = evaluator.total();
  return rounded;
}

int run_eval(const EvalOptions& options) {
  const auto world = parallel::world();
  const bool speaks = world->rank() == 0;
  parallel::check_same(
      *world, "the arguments of eval",
      fmt::format("{} {} {} {} {} {} {} {} {}", options.model, options.data, options.dtype,
                  options.seq_len, options.batch_size, options.stats_batches, options.quantize,
                  options.quantize_activations, options.skip_bad));
  const nn::ModelConfig config = models::read_model_config(options.model);
  const auto tokenizer = io::tokenizer_in(options.model);
  if (!tokenizer) {
    throw io::Error(options.model,
                    "has no tokenizer.json, and eval reads text; for a model of a generated task "
                    "use diffattn compare or diffattn analyze --task");
  }
  if (speaks && options.seq_len > config.max_position_embeddings) {
    print_note("diffattn: --seq-len: rows have {} tokens, but the model was made for {}\n",
               options.seq_len, config.max_position_embeddings);
  }
  const bool language = config.kind == nn::ModelKind::kDecoder && config.labels.empty();
  const auto open = [&] {
    return language ? language_evaluation(options, *tokenizer)
                    : example_evaluation(options, config, *tokenizer);
  };
  EvalData data = open();
  const int64_t longest = options.seq_len > 0 ? options.seq_len : config.max_position_embeddings;
  if (speaks) {
    warn_of_skipped_lines(data.unmeasured.skipped_lines);
    warn_of_truncated_texts(data.unmeasured.truncated, std::to_string(longest));
  }
  data.model->module()->to(torch::Device(options.device));
  train::Evaluator evaluator(*data.model, options.dtype, options.stats_batches);
  if (language) evaluator.count_bytes(train::token_bytes(*tokenizer));
  evaluate_batches(options, data, *world, evaluator);
  const train::Evaluation& total = evaluator.total();
  if (overflows(total)) return report_overflow(options, total, speaks);
  if (total.tokens == 0) throw io::Error(options.data, "expected labels, got none");
  std::optional<Rounded> rounded;
  if (!options.quantize.empty()) rounded = evaluate_rounded(options, open(), *world);
  if (rounded && overflows(rounded->total)) {
    return report_overflow(options, rounded->total, speaks, options.quantize);
  }
  return speaks ? report_evaluation(evaluator, rounded, data.unmeasured, options.json) : 0;
}

}  // namespace

VerbAction add_eval(CLI::App& app) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* verb = app.add_subcommand("eval", "Measure loss and accuracy of a model on a data set");
  add_model_option(*verb, options->model, "model with a tokenizer.json");
  verb->add_option("--data", options->data,
                   "text file, folder, JSONL or token file; JSONL for classifiers and "
                   "encoder-decoders")
      ->required();
  verb->add_option("--seq-len", options->seq_len,
                   "tokens per row (default: the most that the model reads)")
      ->check(integer_in(2, int64_t{1} << 24));
  verb->add_option("--batch-size", options->batch_size, "rows at a time (default 8)")
      ->check(integer_in(1, int64_t{1} << 20));
  verb->add_option("--stats-batches", options->stats_batches,
                   "batches to take attention statistics over (default 1)")
      ->check(integer_from(0));
  verb->add_option("--dtype", options->dtype, "type of the computation (default float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  CLI::Option* quantize =
      verb->add_option("--quantize", options->quantize,
                       "also measure with the matrices of all layers rounded to integers, one "
                       "scale per output channel")
          ->check(CLI::IsMember({"int8", "int4"}));
  verb->add_flag("--quantize-activations", options->quantize_activations,
                 "also round the inputs of these matrices, one scale per token")
      ->needs(quantize);
  add_device_option(*verb, options->device);
  add_threads_option(*verb);
  verb->add_flag("--skip-bad", options->skip_bad, "skip and count bad lines of JSONL data");
  verb->add_flag("--json", options->json, "print one JSON object");
  verb->footer("Example:\n  diffattn eval --model runs/a --data valid.txt");
  return [options] { return run_eval(*options); };
}

}  // namespace diffattn::app
