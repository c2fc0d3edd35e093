// SPDX-License-Identifier: Apache-2.0
//
// diffattn generate: continues prompts with a model folder.

#include <fmt/core.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/nn/generate.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/train/run_config.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/options/stop_text.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::app {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int64_t>;

constexpr std::uint64_t kMaxPromptBytes = std::uint64_t{64} << 20;

struct GenerateOptions {
  std::string model, prompt, input, device = "cpu", dtype = "float32";
  Ids prompt_ids;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 64, top_k = 0, logprobs = 0;
  double temperature = 0.0, top_p = 1.0, repetition_penalty = 1.0;
  uint64_t seed = 0;
  bool json = false;
};

/// What to continue: ids, and the text they came from where there is one.
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
    throw io::Error(options.model, "has no tokenizer.json: give --prompt-ids instead of text");
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

struct Row {
  std::optional<io::StreamDecoder> decoder;
  StopText text;
  bool stopped = false;
};

/// After each token of prompt and continuation the `count` likeliest next ones: [[id, log p], ...].
Json logprobs_of(nn::CausalLM& model, Ids ids, const Ids& added, int64_t count) {
  const torch::NoGradGuard no_grad;
  ids.insert(ids.end(), added.begin(), added.end());
  nn::DecoderInput input;
  input.ids = torch::tensor(ids, torch::kLong).unsqueeze(0).to(model->head_weight().device());
  const auto logits = model->logits(model->forward(input).last)[0].to(torch::kFloat32);
  const auto [values, tokens] =
      logits.log_softmax(-1).topk(std::min(count, logits.size(-1)), /*dim=*/-1);
  const auto log_p = values.to(torch::kCPU), id = tokens.to(torch::kCPU);
  Json places = Json::array();
  for (int64_t place = 0; place < log_p.size(0); ++place) {
    Json best = Json::array();
    for (int64_t i = 0; i < log_p.size(1); ++i) {
      best.push_back({id[place][i].item<int64_t>(), log_p[place][i].item<float>()});
    }
    places.push_back(best);
  }
  return places;
}

void print_json(const Prompts& prompts, const std::vector<Ids>& tokens,
                const std::vector<Row>& rows, const Json& logprobs, double seconds) {
  Json all = Json::array();
  int64_t count = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Json row;
    if (!prompts.texts.empty()) row["prompt"] = prompts.texts[i];
    row["prompt_ids"] = prompts.ids[i];
    row["ids"] = tokens[i];
    if (rows[i].decoder) row["text"] = rows[i].text.all();
    if (!logprobs.empty()) row["logprobs"] = logprobs[i];
    all.push_back(row);
    count += static_cast<int64_t>(tokens[i].size());
  }
  Json result{{"results", all},
              {"tokens", count},
              {"seconds", seconds},
              {"tokens_per_second", static_cast<double>(count) / seconds}};
  // Invalid UTF-8 in a prompt is shown, not refused.
  fmt::print("{}\n", result.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_text(const Prompts& prompts, const std::vector<Ids>& tokens,
                const std::vector<Row>& rows) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (rows[i].decoder) {
      fmt::print("{}{}\n", prompts.texts.empty() ? "" : prompts.texts[i], rows[i].text.all());
    } else {
      std::string line;
      for (const int64_t id : tokens[i]) line += (line.empty() ? "" : ",") + std::to_string(id);
      fmt::print("{}\n", line);
    }
  }
}

/// A model goes on beyond the positions it was trained for, but does not know them.
void note_length(const Prompts& prompts, const std::vector<Ids>& tokens, int64_t known) {
  size_t longest = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    longest = std::max(longest, prompts.ids[i].size() + tokens[i].size());
  }
  if (std::cmp_less_equal(longest, known)) return;
  std::fflush(stdout);
  fmt::print(stderr, "diffattn: {} tokens, of which the model was made for the first {}\n", longest,
             known);
}

/// What says how to sample says nothing about the likeliest token.
void check_sampling(const GenerateOptions& o) {
  if (o.temperature > 0.0) return;
  const auto refuse = [](const char* option) {
    throw train::ConfigError(fmt::format("{}: expected --temperature above 0, got 0", option));
  };
  if (o.top_k > 0) refuse("--top-k");
  if (o.top_p < 1.0) refuse("--top-p");
  if (o.seed != 0) refuse("--seed");
}

int run_generate(const GenerateOptions& options) {
  check_sampling(options);
  if (!models::read_model_config(options.model).labels.empty()) {
    throw io::Error(options.model,
                    "expected a causal language model, got a classifier (diffattn classify)");
  }
  const auto dtype = options.dtype == "bfloat16" ? torch::kBFloat16 : torch::kFloat32;
  nn::CausalLM model = models::load_causal_lm(options.model, dtype);
  model->to(torch::Device(options.device));
  const auto tokenizer = io::tokenizer_in(options.model);
  if (!options.stop.empty() && !tokenizer) {
    throw io::Error(options.model, "has no tokenizer.json: --stop needs one");
  }
  const Prompts prompts = prompts_of(options, tokenizer);
  const bool stream = !options.json && tokenizer && prompts.ids.size() == 1;
  std::vector<Row> rows(prompts.ids.size());
  for (Row& row : rows) {
    if (tokenizer) row.decoder.emplace(*tokenizer);
    row.text = StopText(options.stop);
  }
  const auto show = [&](const std::string& text) {
    if (!stream) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  if (stream && !prompts.texts.empty()) show(prompts.texts[0]);
  const auto start = std::chrono::steady_clock::now();
  const auto tokens = nn::generate(
      *model, prompts.ids, sampling_of(options, model->config, tokenizer),
      [&](size_t row, int64_t token) {
        if (!rows[row].decoder) return true;
        show(rows[row].text.push(rows[row].decoder->push(static_cast<io::TokenId>(token))));
        return !rows[row].text.found();
      });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (Row& row : rows) {
    if (row.decoder) show(row.text.finish(row.decoder->finish()));
  }
  if (options.json) {
    Json logprobs = Json::array();
    for (size_t i = 0; i < tokens.size() && options.logprobs > 0; ++i) {
      logprobs.push_back(logprobs_of(model, prompts.ids[i], tokens[i], options.logprobs));
    }
    print_json(prompts, tokens, rows, logprobs, seconds.count());
  } else if (stream) {
    fmt::print("\n");
  } else {
    print_text(prompts, tokens, rows);
  }
  note_length(prompts, tokens, model->config.max_position_embeddings);
  return 0;
}

}  // namespace

Run add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = app.add_subcommand("generate", "Continue prompts with a model");
  verb->add_option("--model", options->model, "model folder or checkpoint")->required();
  CLI::Option_group* what = verb->add_option_group("prompt", "What to continue");
  what->add_option("--prompt", options->prompt, "text to continue");
  what->add_option("--prompt-ids", options->prompt_ids, "token ids to continue: 5,7,9")
      ->delimiter(',');
  what->add_option("--input", options->input,
                   "file with a prompt per line; - reads standard input");
  what->require_option(1);
  verb->add_option("--max-new-tokens", options->max_new_tokens, "at most this many (64)")
      ->check(integer_in(0, int64_t{1} << 40));
  CLI::Option* temperature = verb->add_option("--temperature", options->temperature,
                                              "of the sampling; 0: always the likeliest token (0)")
                                 ->check(not_negative());
  verb->add_option("--top-k", options->top_k, "sample from the k likeliest tokens; 0: all (0)")
      ->check(integer_from(0))
      ->needs(temperature);
  verb->add_option("--top-p", options->top_p,
                   "sample from the likeliest tokens with this share (1)")
      ->check(share())
      ->needs(temperature);
  verb->add_option("--repetition-penalty", options->repetition_penalty,
                   "above 1: tokens that were there become less likely (1)")
      ->check(positive());
  verb->add_option("--seed", options->seed, "of the sampling (0)")
      ->check(any_seed())
      ->needs(temperature);
  verb->add_option("--stop", options->stop, "text at which to stop; may be given several times")
      ->check([](const std::string& text) {
        return text.empty() ? "expected a text, got nothing" : "";
      })
      ->allow_extra_args(false);
  verb->add_option("--dtype", options->dtype, "float32 or bfloat16 (float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  add_device_option(*verb, options->device);
  auto* json = verb->add_flag("--json", options->json, "one JSON object on standard output");
  verb->add_option("--logprobs", options->logprobs,
                   "log-probabilities of the k likeliest tokens at every place")
      ->check(integer_from(0))
      ->needs(json);
  verb->footer(
      "Example:\n  diffattn generate --model runs/a/model --prompt \"Once\" --temperature 0.8");
  return [options] { return run_generate(*options); };
}

}  // namespace diffattn::app
