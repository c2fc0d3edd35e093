// SPDX-License-Identifier: Apache-2.0
//
// diffattn bench serve: measures an OpenAI-compatible server on this machine under load.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "apps/diffattn/bench/serve/load.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/error.h"

namespace diffattn::app {
namespace {

struct ServeLoadOptions {
  std::string url = "http://127.0.0.1:8000", model, api_key;
  int64_t requests = 100, clients = 1024, prompt_tokens = 128, new_tokens = 128;
  double rate = 0.0, spread = 0.0;
  uint64_t seed = 0;
  bool json = false;
};

/// Draws prompts, lengths and times. Ids are printable ASCII of byte tokenizers, which every
/// vocabulary has.
Load make_load(const ServeLoadOptions& o) {
  // Two generators, so that prompts and lengths are the same at every rate.
  std::mt19937_64 random(o.seed), times(o.seed + 1);
  const auto share_of = [](std::mt19937_64& from) {
    return static_cast<double>(from() >> 11) * 0x1p-53;
  };
  const auto length = [&](int64_t mean) {
    const double factor = 1.0 + o.spread * (2.0 * share_of(random) - 1.0);
    return std::max<int64_t>(1, std::llround(static_cast<double>(mean) * factor));
  };
  Load load;
  load.clients = static_cast<size_t>(o.clients);
  load.api_key = o.api_key;
  double time = 0.0;
  for (int64_t i = 0; i < o.requests; ++i) {
    if (o.rate > 0) time += -std::log1p(-share_of(times)) / o.rate;  // a Poisson process
    std::vector<int64_t> ids(static_cast<size_t>(length(o.prompt_tokens)));
    for (int64_t& id : ids) id = 32 + static_cast<int64_t>(random() % 95);
    const Json body{{"model", o.model},  {"prompt", ids},
                    {"stream", true},    {"stream_options", {{"include_usage", true}}},
                    {"temperature", 0},  {"max_tokens", length(o.new_tokens)},
                    {"ignore_eos", true}};
    load.requests.push_back({time, body.dump(), std::ssize(ids)});
  }
  return load;
}

/// Returns mean and percentiles in milliseconds; null if there are no times.
Json summary(std::vector<double> times) {
  if (times.empty()) return nullptr;
  std::ranges::sort(times);
  const auto at = [&](double share) {
    const auto index = static_cast<size_t>(std::ceil(share * static_cast<double>(times.size())));
    return times[std::max<size_t>(1, index) - 1] * 1e3;
  };
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  return {{"mean", sum / static_cast<double>(times.size()) * 1e3},
          {"p50", at(0.5)},
          {"p90", at(0.9)},
          {"p99", at(0.99)},
          {"max", times.back() * 1e3}};
}

Json result_json(const ServeLoadOptions& o, const Load& load, const LoadResult& result) {
  std::vector<double> first, gaps, all;
  int64_t failed = 0, prompt_tokens = 0, tokens = 0;
  std::string error;
  for (size_t i = 0; i < result.outcomes.size(); ++i) {
    const Outcome& outcome = result.outcomes[i];
    if (!outcome.error.empty() || outcome.status != 200) {
      ++failed;
      if (error.empty()) error = outcome.error;
      continue;
    }
    first.push_back(outcome.first);
    all.push_back(outcome.all);
    gaps.insert(gaps.end(), outcome.gaps.begin(), outcome.gaps.end());
    prompt_tokens += load.requests[i].prompt_tokens;
    tokens += outcome.tokens;
  }
  Json json{{"url", o.url},
            {"model", o.model},
            {"requests", o.requests},
            {"clients", o.clients},
            {"rate", o.rate},
            {"seed", o.seed},
            {"failed", failed},
            {"seconds", result.seconds},
            {"requests_per_second", static_cast<double>(first.size()) / result.seconds},
            {"prompt_tokens_per_second", static_cast<double>(prompt_tokens) / result.seconds},
            {"generated_tokens", tokens},
            {"generated_tokens_per_second", static_cast<double>(tokens) / result.seconds},
            {"ms_first_token", summary(first)},
            {"ms_between_tokens", summary(gaps)},
            {"ms_request", summary(all)}};
  if (failed > 0) json["first_error"] = error.substr(0, 500);
  return json;
}

void print_result(const Json& json) {
  print_out("{} requests in {:.2f} s, {} failed\n", json["requests"].get<int64_t>(),
            json["seconds"].get<double>(), json["failed"].get<int64_t>());
  if (json.contains("first_error")) print_out("{}\n", json["first_error"].get<std::string>());
  print_out("{:.1f} generated tokens/s, {:.1f} prompt tokens/s, {:.2f} requests/s\n\n",
            json["generated_tokens_per_second"].get<double>(),
            json["prompt_tokens_per_second"].get<double>(),
            json["requests_per_second"].get<double>());
  print_out("{:<16}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "p50", "p90", "p99", "max");
  for (const auto& [name, key] :
       {std::pair("first token", "ms_first_token"),
        std::pair("between tokens", "ms_between_tokens"), std::pair("request", "ms_request")}) {
    const Json& times = json[key];
    if (times.is_null()) continue;
    print_out("{:<16}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name,
              times["mean"].get<double>(), times["p50"].get<double>(), times["p90"].get<double>(),
              times["p99"].get<double>(), times["max"].get<double>());
  }
}

int run_bench_serve(ServeLoadOptions o) {
  const LocalAddress address = local_address(o.url);
  if (o.model.empty()) {
    const auto models = nlohmann::json::parse(get_text(address, "/v1/models", o.api_key), nullptr,
                                              /*allow_exceptions=*/false);
    const auto id = nlohmann::json::json_pointer("/data/0/id");
    if (!models.contains(id) || !models[id].is_string()) {
      throw Error("diffattn: bench serve: expected a list of models from " + o.url + "/v1/models");
    }
    o.model = models[id].get<std::string>();
  }
  const Load load = make_load(o);
  const Json json = result_json(o, load, run_load(address, load));
  if (o.json) {
    print_json(json);
  } else {
    print_result(json);
  }
  return json["failed"] == 0 ? 0 : 1;
}

}  // namespace

VerbAction add_bench_serve(CLI::App& bench) {
  auto* verb = bench.add_subcommand("serve", "Measure a server of the OpenAI API under load");
  auto o = std::make_shared<ServeLoadOptions>();
  const auto count = integer_in(1, int64_t{1} << 24);
  verb->add_option("--url", o->url, "address on this machine (default http://127.0.0.1:8000)");
  verb->add_option("--model", o->model, "name of the model (default: the server's first)");
  verb->add_option("--api-key", o->api_key, "key that the server asks for");
  verb->add_option("--requests", o->requests, "requests to send (default 100)")->check(count);
  verb->add_option("--rate", o->rate,
                   "requests per second, at random times; 0 sends them at once (default 0)")
      ->check(not_negative());
  verb->add_option("--clients", o->clients, "most requests at a time (default 1024)")->check(count);
  verb->add_option("--prompt-tokens", o->prompt_tokens, "mean length of prompts (default 128)")
      ->check(count);
  verb->add_option("--new-tokens", o->new_tokens, "mean length of answers (default 128)")
      ->check(count);
  verb->add_option("--spread", o->spread,
                   "lengths are drawn from mean x (1 - spread) to mean x (1 + spread) (default 0)")
      ->check(number_in(0.0, 1.0));
  verb->add_option("--seed", o->seed, "seed of times, prompts and lengths (default 0)")
      ->check(any_seed());
  verb->add_flag("--json", o->json, "print one JSON object");
  verb->footer("Example:\n  diffattn bench serve --rate 20 --requests 200 --new-tokens 64");
  return [o] { return run_bench_serve(*o); };
}

}  // namespace diffattn::app
