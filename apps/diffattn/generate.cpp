// SPDX-License-Identifier: Apache-2.0
//
// diffattn generate: continues prompts with a language model.

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <utility>

#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/options/stop_text.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/nn/generate.h"
#include "diffattn/train/run_config.h"

namespace diffattn::app {
namespace {

using Ids = std::vector<int64_t>;

constexpr uint64_t kMaxPromptBytes = uint64_t{64} << 20;

struct GenerateOptions {
  std::string model, prompt, input, device = "cpu", dtype = "float32";
  Ids prompt_ids;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 64, top_k = 0, logprobs = 0;
  double temperature = 0.0, top_p = 1.0, repetition_penalty = 1.0;
  uint64_t seed = 0;
  bool json = false;
};

/// The prompts as ids, and as texts unless they were given as ids.
struct Prompts {
  std::vector<Ids> ids;
  std::vector<std::string> texts;
};

Ids encode(const io::Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text);
  return {ids.begin(), ids.end()};
}

std::vector<std::string> lines_of(const std::string& path) {
  const std::string text = path == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                                       : io::read_text(path, kMaxPromptBytes);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  const std::string name = path == "-" ? "standard input" : path;
  if (lines.empty()) throw io::Error(name, "expected at least one line with a prompt, got none");
  return lines;
}

Prompts prompts_of(const GenerateOptions& options, const std::optional<io::Tokenizer>& tokenizer) {
  if (!options.prompt_ids.empty()) return {{options.prompt_ids}, {}};
  if (!tokenizer) {
    throw io::Error(options.model, "has no tokenizer.json; give --prompt-ids instead of text");
  }
  Prompts prompts;
  prompts.texts = options.input.empty() ? std::vector{options.prompt} : lines_of(options.input);
  for (const std::string& text : prompts.texts) prompts.ids.push_back(encode(*tokenizer, text));
  return prompts;
}

nn::SamplingOptions sampling_of(const GenerateOptions& options, const nn::ModelConfig& config,
                                const std::optional<io::Tokenizer>& tokenizer) {
  Ids stops;
  if (config.eos_token_id) stops.push_back(*config.eos_token_id);
  if (tokenizer && tokenizer->end_of_text()) stops.push_back(*tokenizer->end_of_text());
  return nn::SamplingOptions()
      .max_new_tokens(options.max_new_tokens)
      .temperature(options.temperature)
      .top_k(options.top_k)
      .top_p(options.top_p)
      .repetition_penalty(options.repetition_penalty)
      .seed(options.seed)
      .stop_tokens(stops);
}

/// The continuation of one prompt.
struct Continuation {
  std::optional<io::StreamDecoder> decoder;  // none without a tokenizer
  StopText text;
  Ids ids;
};

/// Returns the `count` likeliest tokens [[id, log p], ...] after each token of `ids` and `added`.
Json logprobs_of(nn::CausalLM& model, Ids ids, const Ids& added, int64_t count) {
  const torch::NoGradGuard no_grad;
  ids.insert(ids.end(), added.begin(), added.end());
  nn::DecoderInput input;
  input.ids = torch::tensor(ids, torch::kLong).unsqueeze(0).to(model->head_weight().device());
  const auto logits = model->logits(model->forward(input).last)[0].to(torch::kFloat32);
  const auto [values, tokens] =
      logits.log_softmax(-1).topk(std::min(count, logits.size(-1)), /*dim=*/-1);
  const auto log_p = values.to(torch::kCPU), id = tokens.to(torch::kCPU);
  Json positions = Json::array();
  for (int64_t position = 0; position < log_p.size(0); ++position) {
    Json best = Json::array();
    for (int64_t i = 0; i < log_p.size(1); ++i) {
      best.push_back({id[position][i].item<int64_t>(), log_p[position][i].item<float>()});
    }
    positions.push_back(best);
  }
  return positions;
}

void print_results(const Prompts& prompts, const std::vector<Continuation>& rows,
                   const Json& logprobs, double seconds) {
  Json all = Json::array();
  int64_t count = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    Json row;
    if (!prompts.texts.empty()) row["prompt"] = prompts.texts[i];
    row["prompt_ids"] = prompts.ids[i];
    row["ids"] = rows[i].ids;
    if (rows[i].decoder) row["text"] = rows[i].text.all();
    if (!logprobs.empty()) row["logprobs"] = logprobs[i];
    all.push_back(row);
    count += std::ssize(rows[i].ids);
  }
  const Json result{{"results", all},
                    {"tokens", count},
                    {"seconds", seconds},
                    {"tokens_per_second", static_cast<double>(count) / seconds}};
  print_json(result);
}

void print_text(const Prompts& prompts, const std::vector<Continuation>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].decoder) {
      fmt::print("{}{}\n", prompts.texts.empty() ? "" : prompts.texts[i], rows[i].text.all());
    } else {
      fmt::print("{}\n", fmt::join(rows[i].ids, ","));
    }
  }
}

/// Warns if a text grew beyond the positions that the model was trained for.
void warn_of_length(const Prompts& prompts, const std::vector<Continuation>& rows,
                    int64_t trained) {
  size_t longest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    longest = std::max(longest, prompts.ids[i].size() + rows[i].ids.size());
  }
  if (std::cmp_less_equal(longest, trained)) return;
  std::fflush(stdout);
  fmt::print(stderr, "diffattn: the text has {} tokens, but the model was made for {}\n", longest,
             trained);
}

/// Throws train::ConfigError for sampling options at temperature 0, which would have no effect.
void check_sampling(const GenerateOptions& o) {
  if (o.temperature > 0.0) return;
  const auto refuse = [](const char* option) {
    throw train::ConfigError(fmt::format("{}: expected --temperature above 0, got 0", option));
  };
  if (o.top_k > 0) refuse("--top-k");
  if (o.top_p < 1.0) refuse("--top-p");
  if (o.seed != 0) refuse("--seed");
}

nn::CausalLM load_language_model(const GenerateOptions& options) {
  if (!models::read_model_config(options.model).labels.empty()) {
    throw io::Error(options.model,
                    "expected a causal language model, got a classifier; use diffattn classify");
  }
  const auto dtype = options.dtype == "bfloat16" ? torch::kBFloat16 : torch::kFloat32;
  nn::CausalLM model = models::load_causal_lm(options.model, dtype);
  model->to(torch::Device(options.device));
  return model;
}

/// Generates all continuations and hands each new piece of text to `show`.
std::vector<Continuation> continue_prompts(nn::CausalLM& model, const Prompts& prompts,
                                           const GenerateOptions& options,
                                           const std::optional<io::Tokenizer>& tokenizer,
                                           const std::function<void(const std::string&)>& show) {
  std::vector<Continuation> rows(prompts.ids.size());
  for (Continuation& row : rows) {
    if (tokenizer) row.decoder.emplace(*tokenizer);
    row.text = StopText(options.stop);
  }
  const auto take = [&](size_t index, int64_t token) {
    Continuation& row = rows[index];
    if (!row.decoder) return true;
    show(row.text.push(row.decoder->push(static_cast<io::TokenId>(token))));
    return !row.text.found();
  };
  auto ids =
      nn::generate(*model, prompts.ids, sampling_of(options, model->config, tokenizer), take);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].ids = std::move(ids[i]);
    if (rows[i].decoder) show(rows[i].text.finish(rows[i].decoder->finish()));
  }
  return rows;
}

int run_generate(const GenerateOptions& options) {
  check_sampling(options);
  nn::CausalLM model = load_language_model(options);
  const auto tokenizer = io::tokenizer_in(options.model);
  if (!options.stop.empty() && !tokenizer) {
    throw io::Error(options.model, "has no tokenizer.json, which --stop needs");
  }
  const Prompts prompts = prompts_of(options, tokenizer);
  const bool stream = !options.json && tokenizer && prompts.ids.size() == 1;
  const auto show = [&](const std::string& text) {
    if (!stream) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  if (!prompts.texts.empty()) show(prompts.texts[0]);
  const auto start = std::chrono::steady_clock::now();
  const auto rows = continue_prompts(model, prompts, options, tokenizer, show);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (options.json) {
    Json logprobs = Json::array();
    for (size_t i = 0; i < rows.size() && options.logprobs > 0; ++i) {
      logprobs.push_back(logprobs_of(model, prompts.ids[i], rows[i].ids, options.logprobs));
    }
    print_results(prompts, rows, logprobs, seconds.count());
  } else if (stream) {
    fmt::print("\n");
  } else {
    print_text(prompts, rows);
  }
  warn_of_length(prompts, rows, model->config.max_position_embeddings);
  return 0;
}

void add_sampling_options(CLI::App& verb, GenerateOptions& options) {
  CLI::Option* temperature =
      verb.add_option("--temperature", options.temperature,
                      "sampling temperature; 0 takes the likeliest token (default 0)")
          ->check(not_negative());
  verb.add_option("--top-k", options.top_k,
                  "sample from the k likeliest tokens; 0 means all (default 0)")
      ->check(integer_from(0))
      ->needs(temperature);
  verb.add_option(
          "--top-p", options.top_p,
          "sample from the likeliest tokens that have this probability together (default 1)")
      ->check(share())
      ->needs(temperature);
  verb.add_option("--repetition-penalty", options.repetition_penalty,
                  "values above 1 make earlier tokens less likely (default 1)")
      ->check(positive());
  verb.add_option("--seed", options.seed, "seed of the sampling (default 0)")
      ->check(any_seed())
      ->needs(temperature);
}

}  // namespace

VerbAction add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = app.add_subcommand("generate", "Continue prompts with a language model");
  verb->add_option("--model", options->model, "model folder or checkpoint")->required();
  verb->add_option("--prompt", options->prompt, "text to continue");
  verb->add_option("--prompt-ids", options->prompt_ids, "token ids to continue: 5,7,9")
      ->delimiter(',');
  verb->add_option("--input", options->input,
                   "file with one prompt per line, - for standard input");
  verb->add_option("--max-new-tokens", options->max_new_tokens,
                   "most tokens to generate (default 64)")
      ->check(integer_in(0, int64_t{1} << 40));
  add_sampling_options(*verb, *options);
  verb->add_option("--stop", options->stop, "text that ends the continuation")
      ->check([](const std::string& text) {
        return text.empty() ? "expected a text, got nothing" : "";
      })
      ->allow_extra_args(false);
  verb->add_option("--dtype", options->dtype, "type of the weights (default float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  add_device_option(*verb, options->device);
  auto* json = verb->add_flag("--json", options->json, "print one JSON object");
  verb->add_option("--logprobs", options->logprobs,
                   "print the k likeliest tokens at every position with their log-probabilities")
      ->check(integer_from(0))
      ->needs(json);
  verb->callback([verb] { check_one_of(*verb, {"--prompt", "--prompt-ids", "--input"}, true); });
  verb->footer(
      "Give one of --prompt, --prompt-ids and --input.\n\n"
      "Example:\n  diffattn generate --model runs/a/model --prompt \"Once\" --temperature 0.8");
  return [options] { return run_generate(*options); };
}

}  // namespace diffattn::app
