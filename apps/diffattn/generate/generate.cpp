// SPDX-License-Identifier: Apache-2.0
//
// diffattn generate: continues prompts with a language model.

#include <fmt/ranges.h>
#include <torch/torch.h>

#include "apps/diffattn/generate/interactive.h"
#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/model_option.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/train/run_config.h"

namespace diffattn::app {
namespace {

struct GenerateOptions {
  std::string model, prompt, input, system, device = "cpu", dtype;
  Ids prompt_ids;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 64, top_k = 0, logprobs = 0, samples = 1;
  std::optional<double> temperature;  // none: 1 with an option that only makes sense for sampling
  double top_p = 1.0, repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  uint64_t seed = 0;
  bool json = false, interactive = false, samples_tokens = false, verbose = false, no_chat = false;
};

/// Throws io::Error if the model needs a tokenizer.json that its folder does not have.
void check_tokenizer(const GenerateOptions& options, bool has_tokenizer) {
  if (has_tokenizer) return;
  if (options.prompt_ids.empty()) {
    throw io::Error(options.model, "has no tokenizer.json; give --prompt-ids instead of text");
  }
  if (!options.stop.empty()) {
    throw io::Error(options.model, "has no tokenizer.json, which --stop needs");
  }
}

Prompts prompts_of(const GenerateOptions& options, const std::optional<io::Tokenizer>& tokenizer) {
  if (!options.prompt_ids.empty()) return {{options.prompt_ids}, {}};
  return encoded_prompts(
      options.input.empty() ? std::vector{options.prompt} : prompt_lines(options.input),
      *tokenizer);
}

nn::SamplingOptions sampling_of(const GenerateOptions& options, const nn::ModelConfig& config,
                                const std::optional<io::Tokenizer>& tokenizer) {
  Ids stops;
  if (config.eos_token_id) stops.push_back(*config.eos_token_id);
  if (tokenizer && tokenizer->end_of_text()) stops.push_back(*tokenizer->end_of_text());
  return nn::SamplingOptions()
      .max_new_tokens(options.max_new_tokens)
      .temperature(options.temperature.value_or(options.samples_tokens ? 1.0 : 0.0))
      .top_k(options.top_k)
      .top_p(options.top_p)
      .repetition_penalty(options.repetition_penalty)
      .presence_penalty(options.presence_penalty)
      .frequency_penalty(options.frequency_penalty)
      .seed(options.seed)
      .stop_tokens(stops);
}

/// Returns the `count` likeliest tokens [[id, log p], ...] after each token of `ids` and `added`.
Json logprobs_of(nn::CausalLM& model, Ids ids, const Ids& added, int64_t count) {
  const torch::NoGradGuard no_grad;
  ids.insert(ids.end(), added.begin(), added.end());
  nn::DecoderInput input;
  input.ids = torch::tensor(ids, torch::kLong).unsqueeze(0).to(model->head_weight().device());
  const auto logits = model->logits(input)[0].to(torch::kFloat32);
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

void print_results(Generator& generator, const Prompts& prompts, const Continuations& all,
                   const GenerateOptions& options) {
  Json results = Json::array();
  for (size_t i = 0; i < all.rows.size(); ++i) {
    const Continuation& row = all.rows[i];
    Json result;
    if (!prompts.texts.empty()) result["prompt"] = prompts.texts[i];
    result["prompt_ids"] = prompts.ids[i];
    if (options.samples > 1) result["sample"] = static_cast<int64_t>(i) % options.samples;
    result["ids"] = row.ids;
    if (row.decoder) result["text"] = row.text.all();
    if (options.logprobs > 0) {
      result["logprobs"] = logprobs_of(generator.model, prompts.ids[i], row.ids, options.logprobs);
    }
    results.push_back(result);
  }
  const Json json{{"results", results},
                  {"tokens", all.tokens()},
                  {"seconds", all.seconds},
                  {"tokens_per_second", static_cast<double>(all.tokens()) / all.seconds}};
  print_json(json);
}

void print_text(const Prompts& prompts, const Continuations& all) {
  for (size_t i = 0; i < all.rows.size(); ++i) {
    const Continuation& row = all.rows[i];
    if (row.decoder) {
      print_out("{}{}\n", prompts.text(i), row.text.all());
    } else {
      print_out("{}\n", fmt::join(row.ids, ","));
    }
  }
}

/// Throws train::ConfigError for sampling options at temperature 0, which would have no effect.
void check_sampling(const GenerateOptions& o) {
  const auto refuse = [](const char* option, const char* expected, const char* got) {
    throw train::ConfigError(fmt::format("{}: expected {}, got {}", option, expected, got));
  };
  if (!o.temperature && !o.samples_tokens && o.seed != 0) {
    refuse("--seed", "--temperature, --top-k, --top-p or --samples with it", "none of them");
  }
  if (o.temperature.value_or(1.0) > 0.0) return;
  const char* const above = "--temperature above 0";
  if (o.top_k > 0) refuse("--top-k", above, "0");
  if (o.top_p < 1.0) refuse("--top-p", above, "0");
  if (o.samples > 1) refuse("--samples", above, "0");
  if (o.seed != 0) refuse("--seed", above, "0");
}

nn::CausalLM load_language_model(const GenerateOptions& options) {
  if (!models::read_model_config(options.model).labels.empty()) {
    throw io::Error(options.model,
                    "expected a causal language model, got a classifier; use diffattn classify");
  }
  const torch::Device device(options.device);
  const std::string type =
      !options.dtype.empty() ? options.dtype : (device.is_cuda() ? "bfloat16" : "float32");
  const auto dtype = type == "bfloat16"  ? torch::kBFloat16
                     : type == "float16" ? torch::kFloat16
                                         : torch::kFloat32;
  nn::CausalLM model = models::load_causal_lm(options.model, dtype);
  model->to(device);
  return model;
}

/// Tells how the tokens were computed.
void note_engine(const infer::Generator& engine) {
  if (!engine.uses_steps()) {
    return print_note("diffattn: computed by the modules: {}\n", engine.reason());
  }
  const infer::Batcher::Load load = engine.load();
  print_note("diffattn: fused steps; KV cache: {:.1f} MiB; steps prepared: {}, in {:.3f} s\n",
             static_cast<double>(load.cache_bytes) / (1 << 20), load.captures,
             load.capture_seconds);
}

/// Returns a conversation if the model's folder has a chat template, and makes its tokens end a
/// continuation.
std::optional<Conversation> conversation_with(Generator& generator,
                                              const GenerateOptions& options) {
  if (options.no_chat) return std::nullopt;
  std::optional<io::ChatTemplate> chat = io::chat_template_in(options.model);
  if (!chat) {
    if (options.system.empty()) return std::nullopt;
    throw io::Error(options.model, "has no chat template, which --system needs");
  }
  Conversation conversation(std::move(*chat), *generator.tokenizer, options.system);
  Ids stops = generator.sampling.stop_tokens();
  stops.insert(stops.end(), conversation.ends().begin(), conversation.ends().end());
  generator.sampling.stop_tokens(stops);
  return conversation;
}

int run_generate(const GenerateOptions& options) {
  check_sampling(options);
  Generator generator{.model = load_language_model(options),
                      .tokenizer = io::tokenizer_in(options.model),
                      .sampling = {},
                      .stop = options.stop};
  generator.sampling = sampling_of(options, generator.model->config, generator.tokenizer);
  check_tokenizer(options, generator.tokenizer.has_value());
  if (options.interactive) {
    return continue_interactively(generator, conversation_with(generator, options));
  }
  const Prompts prompts = prompts_of(options, generator.tokenizer).repeated(options.samples);
  const bool stream = !options.json && generator.tokenizer && prompts.ids.size() == 1;
  ContinueEvents events;
  if (stream) {
    events.show = [](const std::string& text) {
      print_out("{}", text);
      std::fflush(stdout);
    };
    events.show(prompts.text(0));
  }
  const Continuations all = continue_prompts(generator, prompts, events);
  if (options.json) {
    print_results(generator, prompts, all, options);
  } else if (stream) {
    print_out("\n");
  } else {
    print_text(prompts, all);
  }
  warn_of_length(prompts, all, generator.model->config.max_position_embeddings);
  if (!options.json) note_speed(all);
  if (options.verbose) note_engine(generator.engine);
  return 0;
}

void add_prompt_options(CLI::App& verb, GenerateOptions& options) {
  verb.add_option("--prompt", options.prompt, "text to continue");
  verb.add_option("--prompt-ids", options.prompt_ids, "token ids to continue: 5,7,9")
      ->delimiter(',');
  verb.add_option("--input", options.input,
                  "file or pipe with one prompt per line, - for standard input");
  CLI::Option* const interactive = verb.add_flag(
      "--interactive", options.interactive,
      "read lines from the terminal: a conversation if the model has a chat template, "
      "else prompts that are continued one by one");
  CLI::Option* const system =
      verb.add_option("--system", options.system, "system message of the conversation")
          ->needs(interactive);
  verb.add_flag("--no-chat", options.no_chat, "continue each line without the chat template")
      ->needs(interactive)
      ->excludes(system);
}

void add_sampling_options(CLI::App& verb, GenerateOptions& options) {
  verb.add_option("--temperature", options.temperature,
                  "sampling temperature; 0 takes the likeliest token (default 0, or 1 with "
                  "--top-k, --top-p or --samples)")
      ->check(not_negative());
  verb.add_option("--top-k", options.top_k,
                  "sample from the k likeliest tokens; 0 means all (default 0)")
      ->check(integer_from(0));
  verb.add_option(
          "--top-p", options.top_p,
          "sample from the likeliest tokens that have this probability together (default 1)")
      ->check(share());
  verb.add_option("--samples", options.samples, "continuations of each prompt (default 1)")
      ->check(integer_in(1, 4096));
  verb.add_option("--repetition-penalty", options.repetition_penalty,
                  "values above 1 make earlier tokens less likely (default 1)")
      ->check(positive());
  verb.add_option("--presence-penalty", options.presence_penalty,
                  "subtracted from the logits of generated tokens (default 0)")
      ->check(number_in(-100.0, 100.0));
  verb.add_option("--frequency-penalty", options.frequency_penalty,
                  "subtracted each time that a token was generated (default 0)")
      ->check(number_in(-100.0, 100.0));
  verb.add_option("--seed", options.seed, "seed of the sampling (default 0)")->check(any_seed());
}

}  // namespace

VerbAction add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = app.add_subcommand("generate", "Continue prompts with a language model");
  add_model_option(*verb, options->model, "language model");
  add_prompt_options(*verb, *options);
  verb->add_option("--max-new-tokens", options->max_new_tokens,
                   "most tokens to generate (default 64)")
      ->check(integer_in(0, int64_t{1} << 40));
  add_sampling_options(*verb, *options);
  verb->add_option("--stop", options->stop, "text that ends the continuation")
      ->check([](const std::string& text) {
        return text.empty() ? "expected a text, got nothing" : "";
      })
      ->allow_extra_args(false);
  verb->add_option("--dtype", options->dtype,
                   "type of the weights (default float32, on a GPU bfloat16)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  add_device_option(*verb, options->device);
  add_threads_option(*verb);
  verb->add_flag("--verbose", options->verbose,
                 "tell how tokens were computed, the memory of the cache and the time of set-up");
  CLI::Option* json = verb->add_flag("--json", options->json, "print one JSON object");
  verb->add_option("--logprobs", options->logprobs,
                   "print the k likeliest tokens at every position with their log-probabilities")
      ->check(integer_from(0))
      ->needs(json);
  verb->get_option("--interactive")->excludes(json)->excludes(verb->get_option("--samples"));
  verb->callback([verb, options] {
    check_one_of(*verb, {"--prompt", "--prompt-ids", "--input", "--interactive"}, true);
    options->samples_tokens = verb->get_option("--top-k")->count() > 0 ||
                              verb->get_option("--top-p")->count() > 0 || options->samples > 1;
  });
  verb->footer(
      "Give one of --prompt, --prompt-ids, --input and --interactive.\n\n"
      "Example:\n  diffattn generate --model runs/a --prompt \"Once\" --temperature 0.8");
  return [options] { return run_generate(*options); };
}

}  // namespace diffattn::app
