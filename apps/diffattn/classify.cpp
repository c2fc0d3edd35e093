// SPDX-License-Identifier: Apache-2.0
//
// diffattn classify: labels lines of text.

#include <fmt/core.h>
#include <torch/torch.h>

#include <algorithm>

#include "apps/diffattn/options/line_items.h"
#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/model_option.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/data/metrics.h"
#include "diffattn/io/error.h"
#include "diffattn/ops.h"
#include "diffattn/train/classifier.h"

namespace diffattn::app {
namespace {

struct ClassifyOptions {
  std::string model, input, device = "cpu";
  int64_t batch_size = 32, top_tokens = 10;
  bool json = false, explain = false, truncate = false;
};

constexpr int64_t kMapEntries = int64_t{1} << 22;  // most entries of a map held at a time

/// Returns the attention call for text `b` of the batch alone.
nn::HeadTensors one_text(const nn::HeadTensors& call, int64_t b) {
  nn::HeadTensors one = call;
  for (torch::Tensor* t : {&one.q1, &one.q2, &one.k1, &one.k2}) *t = t->narrow(0, b, 1);
  if (one.lambda.dim() == 3) one.lambda = one.lambda.narrow(0, b, 1);
  AttentionOptions& o = one.options;
  if (o.key_starts()) o.key_starts(o.key_starts()->narrow(0, b, 1));
  if (o.key_lengths()) o.key_lengths(o.key_lengths()->narrow(0, b, 1));
  if (o.mask() && o.mask()->dim() == 4 && o.mask()->size(0) > 1) {
    o.mask(o.mask()->narrow(0, b, 1));
  }
  return one;
}

class Classify {
 public:
  explicit Classify(const ClassifyOptions& options)
      : options_(options),
        model_(train::load_classifier(options.model)),
        tokenizer_(io::tokenizer_in(options.model)),
        confusion_(std::ssize(model_->config.labels)),
        results_(options.json, options.truncate) {
    model_->to(torch::Device(options.device));
  }

  int run() {
    const nn::ModelConfig& config = model_->config;
    LineItems lines(options_.input, tokenizer_,
                    {.text_key = "text",
                     .expected_key = "label",
                     .max_tokens = config.max_position_embeddings,
                     .vocab_size = config.vocab_size});
    for (std::vector<LineItem> batch; lines.next(batch, options_.batch_size);) answer(batch);
    return finish();
  }

 private:
  void check_label(LineItem& item) const {
    const auto& labels = model_->config.labels;
    if (!item.expected || !item.error.empty()) return;
    if (std::ranges::find(labels, *item.expected) == labels.end()) {
      item.error = fmt::format("key 'label': expected one of the model's {} labels, got {}",
                               labels.size(), io::in_quotes(*item.expected));
    }
  }

  /// Classifies a batch and adds the results in the order of the lines.
  void answer(std::vector<LineItem>& batch) {
    std::vector<size_t> good;
    for (size_t i = 0; i < batch.size(); ++i) {
      check_label(batch[i]);
      if (batch[i].error.empty()) good.push_back(i);
    }
    std::vector<Json> results(batch.size());
    if (!good.empty()) predict(batch, good, results);
    for (size_t i = 0; i < batch.size(); ++i) results_.add(batch[i], results[i]);
  }

  /// Writes the results of good items. An item for which the model overflows gets an error.
  void predict(std::vector<LineItem>& batch, const std::vector<size_t>& good,
               std::vector<Json>& results) {
    const torch::NoGradGuard no_grad;
    const torch::Device device(options_.device);
    size_t longest = 0;
    for (const size_t i : good) longest = std::max(longest, batch[i].ids.size());
    std::vector<int64_t> flat, lengths;
    for (const size_t i : good) {
      flat.insert(flat.end(), batch[i].ids.begin(), batch[i].ids.end());
      flat.resize(flat.size() + longest - batch[i].ids.size(), 0);
      lengths.push_back(std::ssize(batch[i].ids));
    }
    nn::ModelInput input;
    input.ids =
        torch::tensor(flat).view({std::ssize(good), static_cast<int64_t>(longest)}).to(device);
    input.mask.key_lengths(torch::tensor(lengths).to(device));
    std::vector<nn::AttentionTrace> traces;
    if (options_.explain) input.traces = &traces;
    const torch::Tensor chances =
        model_->forward(input).logits.softmax(-1).to(torch::kCPU, torch::kFloat64);
    for (size_t row = 0; row < good.size(); ++row) {
      const auto r = static_cast<int64_t>(row);
      if (!chances[r].isfinite().all().item<bool>()) {
        batch[good[row]].error =
            "expected finite probabilities, got others, because numbers in the model overflow";
        overflowed_ = true;
        continue;
      }
      results[good[row]] = result_of(batch[good[row]], chances[r]);
      if (options_.explain) {
        results[good[row]]["tokens"] =
            explained(batch[good[row]], token_weights(traces.back(), r, lengths[row]));
      }
    }
  }

  Json result_of(const LineItem& item, const torch::Tensor& chances) {
    const auto& labels = model_->config.labels;
    const auto best = chances.argmax().item<int64_t>();
    Json probabilities = Json::object();
    for (size_t i = 0; i < labels.size(); ++i) {
      probabilities[labels[i]] = chances[static_cast<int64_t>(i)].item<double>();
    }
    Json result{{"line", item.line},
                {"label", labels[static_cast<size_t>(best)]},
                {"probabilities", probabilities}};
    if (item.truncated()) result["truncated_from"] = item.tokens;
    if (item.expected) {
      const auto wanted = std::ranges::find(labels, *item.expected) - labels.begin();
      result["expected"] = *item.expected;
      confusion_.add(wanted, best);
    }
    return result;
  }

  /// Returns [N]: the signed attention weight that each token of text `b` gets in the last layer,
  /// as the mean over heads and over the rows that the classifier pools.
  torch::Tensor token_weights(const nn::AttentionTrace& layer, int64_t b, int64_t length) const {
    const nn::HeadTensors h = one_text(layer.calls.front(), b);
    const std::string& pooling = model_->config.classifier_pooling;
    const int64_t begin = pooling == "last" ? length - 1 : 0;
    const int64_t end = pooling == "cls" ? 1 : length;
    // We compute the map in blocks of rows, because a whole map is quadratic in the length.
    const int64_t block = std::max<int64_t>(1, kMapEntries / (h.q1.size(2) * h.k1.size(1)));
    torch::Tensor sum = torch::zeros({h.k1.size(1)}, torch::kFloat64);
    for (int64_t row = begin; row < end; row += block) {
      const auto rows = MapOptions().row_begin(row).row_end(std::min(end, row + block));
      sum += attention_map(h.q1, h.q2, h.k1, h.k2, h.lambda, h.options, rows)
                 .select(2, 2)
                 .mean(1)[0]
                 .to(torch::kCPU, torch::kFloat64)
                 .sum(0);  // [rows, N] -> [N]
    }
    return sum / (end - begin);
  }

  Json explained(const LineItem& item, const torch::Tensor& weights) const {
    std::vector<std::pair<double, size_t>> all;
    for (size_t i = 0; i < item.ids.size(); ++i) {
      all.emplace_back(weights[static_cast<int64_t>(i)].item<double>(), i);
    }
    const auto larger = [](const auto& a, const auto& b) {
      return std::abs(a.first) > std::abs(b.first);
    };
    std::ranges::stable_sort(all, larger);
    all.resize(std::min(all.size(), static_cast<size_t>(options_.top_tokens)));
    Json tokens = Json::array();
    for (const auto& [weight, index] : all) {
      const auto id = static_cast<io::TokenId>(item.ids[index]);
      Json token{{"index", index}, {"id", id}, {"weight", weight}};
      if (tokenizer_) token["token"] = tokenizer_->decode({&id, 1}, false);
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  int finish() {
    Json metrics = Json::object();
    if (confusion_.total() > 0) {
      metrics = {{"labelled", confusion_.total()},
                 {"accuracy", confusion_.accuracy()},
                 {"macro_f1", confusion_.macro_f1()}};
      Json table = Json::array();
      for (int64_t label = 0; label < confusion_.classes(); ++label) {
        Json row = Json::array();
        for (int64_t predicted = 0; predicted < confusion_.classes(); ++predicted) {
          row.push_back(confusion_.count(label, predicted));
        }
        table.push_back(row);
      }
      metrics["confusion"] = table;
      print_note("{} labelled {}: accuracy {:.4f}, macro-F1 {:.4f}\n", confusion_.total(),
                 confusion_.total() == 1 ? "line" : "lines", confusion_.accuracy(),
                 confusion_.macro_f1());
    }
    const int code = results_.finish({{"labels", model_->config.labels}, {"metrics", metrics}});
    return overflowed_ ? kNonFiniteLoss : code;
  }

  const ClassifyOptions& options_;
  train::Classifier model_;
  std::optional<io::Tokenizer> tokenizer_;
  data::Confusion confusion_;
  bool overflowed_ = false;
  LineResults results_;
};

}  // namespace

VerbAction add_classify(CLI::App& app) {
  auto options = std::make_shared<ClassifyOptions>();
  CLI::App* verb = app.add_subcommand("classify", "Label lines of text: JSONL in, JSONL out");
  add_model_option(*verb, options->model, "classifier");
  verb->add_option(
          "--input", options->input,
          "JSONL file or pipe of {\"text\": ...}, - for standard input; lines with \"label\" "
          "count for the accuracy")
      ->required();
  verb->add_option("--batch-size", options->batch_size, "texts at a time (default 32)")
      ->check(integer_in(1, int64_t{1} << 16));
  CLI::Option* explain = verb->add_flag("--explain", options->explain,
                                        "also list the tokens with the largest attention weights");
  verb->add_option("--top-tokens", options->top_tokens, "tokens in that list (default 10)")
      ->check(integer_in(1, int64_t{1} << 20))
      ->needs(explain);
  verb->add_flag("--truncate", options->truncate,
                 "allow texts that are longer than the model reads");
  add_device_option(*verb, options->device);
  add_threads_option(*verb);
  verb->add_flag("--json", options->json, "print one JSON object instead of one per line");
  verb->footer("Example:\n  diffattn classify --model runs/a --input in.jsonl --explain");
  return [options] { return Classify(*options).run(); };
}

}  // namespace diffattn::app
