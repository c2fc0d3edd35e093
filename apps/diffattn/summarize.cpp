// SPDX-License-Identifier: Apache-2.0
//
// diffattn summarize: writes a summary of each document.

#include <fmt/core.h>
#include <torch/torch.h>

#include "apps/diffattn/options/line_items.h"
#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/model_option.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/data/metrics.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/train/run_config.h"
#include "diffattn/train/summarizer.h"

namespace diffattn::app {
namespace {

struct SummarizeOptions {
  std::string model, input, device = "cpu";
  train::WritingOptions writing;
  int64_t batch_size = 16;
  bool json = false, truncate = false;
};

class Summarize {
 public:
  explicit Summarize(const SummarizeOptions& options)
      : options_(options),
        model_(models::load_encoder_decoder(options.model)),
        tokenizer_(io::tokenizer_in(options.model)),
        results_(options.json, options.truncate) {
    model_->to(torch::Device(options.device));
    model_->eval();
  }

  int run() {
    LineItems lines(options_.input, tokenizer_,
                    {.text_key = "document",
                     .expected_key = "summary",
                     .max_tokens = model_->config.max_position_embeddings,
                     .vocab_size = model_->config.vocab_size});
    for (std::vector<LineItem> batch; lines.next(batch, options_.batch_size);) answer(batch);
    return finish();
  }

 private:
  void answer(const std::vector<LineItem>& batch) {
    std::vector<std::vector<int64_t>> sources;
    for (const LineItem& item : batch) {
      if (item.error.empty()) sources.push_back(item.ids);
    }
    const auto texts = train::write_texts(*model_, sources, options_.writing);
    size_t next = 0;
    for (const LineItem& item : batch) {
      Json result{{"line", item.line}};
      if (item.error.empty()) add_summary(item, texts[next++], result);
      results_.add(item, result);
    }
  }

  void add_summary(const LineItem& item, const std::vector<int64_t>& ids, Json& result) {
    std::string text;
    if (tokenizer_) {
      text = tokenizer_->decode(std::vector<io::TokenId>(ids.begin(), ids.end()));
      result["summary"] = text;
    }
    result["ids"] = ids;
    if (item.truncated()) result["truncated_from"] = item.tokens;
    if (!item.expected || !tokenizer_) return;
    const data::Rouge r = data::rouge(text, *item.expected);
    result["rouge1"] = r.rouge1;
    result["rouge2"] = r.rouge2;
    result["rouge_l"] = r.rouge_l;
    sum_ += r;
    ++measured_;
  }

  int finish() {
    Json metrics = Json::object();
    if (measured_ > 0) {
      const auto n = static_cast<double>(measured_);
      metrics = {{"measured", measured_},
                 {"rouge1", sum_.rouge1 / n},
                 {"rouge2", sum_.rouge2 / n},
                 {"rouge_l", sum_.rouge_l / n}};
      print_note("{}: ROUGE-1 {:.4f}, ROUGE-2 {:.4f}, ROUGE-L {:.4f}\n",
                 measured_ == 1 ? "1 summary" : fmt::format("{} summaries", measured_),
                 sum_.rouge1 / n, sum_.rouge2 / n, sum_.rouge_l / n);
    }
    return results_.finish({{"metrics", metrics}});
  }

  const SummarizeOptions& options_;
  nn::EncoderDecoder model_;
  std::optional<io::Tokenizer> tokenizer_;
  data::Rouge sum_;
  int64_t measured_ = 0;
  LineResults results_;
};

}  // namespace

VerbAction add_summarize(CLI::App& app) {
  auto options = std::make_shared<SummarizeOptions>();
  CLI::App* verb = app.add_subcommand("summarize", "Summarise documents: JSONL in, JSONL out");
  add_model_option(*verb, options->model, "encoder-decoder");
  verb->add_option("--input", options->input,
                   "JSONL file or pipe of {\"document\": ...}, - for standard input; lines with "
                   "\"summary\" are scored by ROUGE")
      ->required();
  verb->add_option("--max-new-tokens", options->writing.max_new_tokens,
                   "most tokens of a summary (default 256)")
      ->check(integer_in(1, int64_t{1} << 24));
  CLI::Option* beams = verb->add_option("--beams", options->writing.beams,
                                        "beams of the search; 1 is greedy (default 1)")
                           ->check(integer_in(1, 1024));
  verb->add_option("--length-penalty", options->writing.length_penalty,
                   "divide the log-probability by length to this power (default 1)")
      ->check(number_in(-10.0, 10.0))
      ->needs(beams);
  verb->add_option("--no-repeat-ngram", options->writing.no_repeat_ngram,
                   "length of token runs that must not repeat; 0 is off (default 0)")
      ->check(integer_in(0, int64_t{1} << 20));
  verb->add_option("--batch-size", options->batch_size, "documents at a time (default 16)")
      ->check(integer_in(1, int64_t{1} << 16));
  verb->add_flag("--truncate", options->truncate,
                 "allow documents that are longer than the model reads");
  add_device_option(*verb, options->device);
  add_threads_option(*verb);
  verb->add_flag("--json", options->json, "print one JSON object instead of one per line");
  verb->footer("Example:\n  diffattn summarize --model runs/a --input in.jsonl --beams 4");
  return [options] {
    if (options->writing.beams == 1 && options->writing.length_penalty != 1.0) {
      throw train::ConfigError("--length-penalty: expected --beams above 1, got 1");
    }
    return Summarize(*options).run();
  };
}

}  // namespace diffattn::app
