// SPDX-License-Identifier: Apache-2.0
//
// diffattn serve: an OpenAI-compatible server for a language model.

#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/model_option.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/stop_signal.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/train/run_config.h"
#include "serve/engine/scheduler.h"
#include "serve/http/http.h"
#include "serve/page/page.h"
#include "serve/service.h"

namespace diffattn::app {
namespace {

struct ServeOptions {
  std::string name, api_key_file, dtype;
  serve::SchedulerOptions scheduler;
  serve::HttpOptions http;
  serve::ServiceOptions service;
  int64_t max_context = 0, time_limit = 600, max_body_mib = 4;
  bool no_prefix_sharing = false, no_page = false;
};

/// Returns the key of --api-key-file or of the environment; empty if neither is given.
std::string api_key_of(const ServeOptions& options) {
  if (options.api_key_file.empty()) {
    const char* const key = std::getenv("DIFFATTN_API_KEY");
    return !options.service.api_key.empty() ? options.service.api_key : key == nullptr ? "" : key;
  }
  std::string key = io::read_text(options.api_key_file, 4096);
  key.erase(key.find_last_not_of(" \r\n") + 1);
  if (key.empty()) throw io::Error(options.api_key_file, "expected an API key, got an empty file");
  return key;
}

/// Returns the model's name in the API: that of its folder, or of the run that the folder is in.
std::string name_of(const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path path = fs::weakly_canonical(folder);
  const bool in_run = path.filename() == "model" && path.has_parent_path();
  return (in_run ? path.parent_path() : path).filename().string();
}

serve::ModelCard card_of(const ServeOptions& options, const serve::ModelFacts& facts) {
  const std::string& folder = options.scheduler.folder;
  std::optional<io::Tokenizer> tokenizer = io::tokenizer_in(folder);
  if (!tokenizer) throw io::Error(folder, "has no tokenizer.json, which a server needs");
  serve::ModelCard card{.name = options.name.empty() ? name_of(folder) : options.name,
                        .created = std::time(nullptr),
                        .vocab_size = facts.vocab_size,
                        .max_context = std::min(facts.max_positions, facts.cache_tokens),
                        .stop_tokens = facts.stop_tokens,
                        .tokenizer = *tokenizer,
                        .chat = {},
                        .no_chat_reason = {}};
  if (options.max_context > 0) card.max_context = std::min(options.max_context, facts.cache_tokens);
  if (tokenizer->end_of_text()) card.stop_tokens.push_back(*tokenizer->end_of_text());
  if (auto chat = io::chat_template_in(folder)) {
    card.chat.emplace(std::move(*chat), *tokenizer);
  } else {
    card.no_chat_reason =
        "the model has no chat template: its folder has no chat_template.jinja and its "
        "tokenizer_config.json no chat_template; use /v1/completions";
  }
  return card;
}

bool is_local(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// Stops the scheduler, whose events go to the service, before the service ends.
struct StopScheduler {
  serve::Scheduler& scheduler;
  ~StopScheduler() { scheduler.stop(); }
};

int run_serve(ServeOptions options) {
  options.service.api_key = api_key_of(options);
  options.service.local_only = is_local(options.http.host);
  if (!options.no_page) options.service.page = serve::page();
  options.service.time_limit = std::chrono::seconds(options.time_limit);
  options.http.answer_timeout = std::chrono::seconds(options.time_limit + 60);
  options.http.max_body_bytes = static_cast<size_t>(options.max_body_mib) << 20;
  options.scheduler.share_prefixes = !options.no_prefix_sharing;
  if (options.dtype.empty())
    options.dtype = options.scheduler.device == "cpu" ? "float32" : "bfloat16";
  options.scheduler.dtype = options.dtype;
  const StopSignal signal;  // before threads begin, and while the model loads
  serve::Scheduler scheduler(options.scheduler);
  const serve::ModelFacts& facts = scheduler.facts();
  serve::Service service(card_of(options, facts), options.service);
  service.use(scheduler);
  scheduler.start(
      [&](std::vector<serve::Event>&& events) { service.responder().push(std::move(events)); });
  const StopScheduler stop{scheduler};  // after connections and before the service end
  serve::HttpServer http(
      options.http,
      [&](serve::HttpRequest&& request, const auto& reply) {
        service.handle(std::move(request), reply);
      },
      [&](const serve::HttpRequest& head) { return service.needs_body(head); });
  service.count_connections([&] { return http.connections(); });
  http.listen();
  print_note("diffattn: {} parameters in {}, {}; KV cache for {} tokens\n", facts.parameters,
             options.dtype, facts.engine, facts.cache_tokens);
  const bool v6 = options.http.host.find(':') != std::string::npos;
  print_out("diffattn: serving on http://{}{}{}:{}\n", v6 ? "[" : "", options.http.host,
            v6 ? "]" : "", http.port());
  std::fflush(stdout);
  if (!options.service.local_only && options.service.api_key.empty()) {
    print_note("diffattn: anyone who reaches this address can use the model; see --api-key\n");
  }
  using namespace std::chrono_literals;
  while (!signal.received()) std::this_thread::sleep_for(50ms);
  service.drain();
  print_note("diffattn: stopping; {} requests still run\n", service.open_jobs());
  while (service.open_jobs() > 0) std::this_thread::sleep_for(20ms);
  const auto end = std::chrono::steady_clock::now() + 10s;  // for clients to read their answers
  while (http.answering() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(20ms);
  }
  return 0;
}

void add_limits(CLI::App& verb, ServeOptions& o) {
  const auto count = integer_in(1, int64_t{1} << 24);
  verb.add_option("--max-rows", o.scheduler.max_rows,
                  "sequences that one step computes (default 64)")
      ->check(integer_in(1, 1024));
  verb.add_option("--max-queue", o.scheduler.max_queue,
                  "sequences that wait; more get status 429 (default 256)")
      ->check(integer_in(0, int64_t{1} << 24));
  verb.add_option("--cache-tokens", o.scheduler.cache_tokens,
                  "room in the KV cache (default: by the memory, at most 4 GiB, 16 on a GPU)")
      ->check(integer_in(16, int64_t{1} << 40));
  verb.add_option("--prefill-tokens", o.scheduler.prefill_tokens,
                  "prompt tokens computed between two steps (default 512, on a GPU 16384)")
      ->check(count);
  verb.add_option("--max-context", o.max_context,
                  "tokens of a prompt and its continuation (default: as the model was made for)")
      ->check(count);
  verb.add_option("--time-limit", o.time_limit, "seconds that a request may take (default 600)")
      ->check(integer_in(1, 86400));
  verb.add_option("--max-connections", o.http.max_connections, "open connections (default 1024)")
      ->check(integer_in(1, 65536));
  verb.add_option("--max-body", o.max_body_mib, "MiB of a request (default 4)")
      ->check(integer_in(1, 1024));
  verb.add_option("--http-threads", o.http.threads, "threads for connections (default 4)")
      ->check(integer_in(1, 64));
  verb.add_flag("--no-page", o.no_page, "leave out the page at /");
  verb.add_flag("--no-prefix-sharing", o.no_prefix_sharing,
                "compute every prompt from its beginning");
}

}  // namespace

VerbAction add_serve(CLI::App& app) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* verb = app.add_subcommand("serve", "Serve a language model by the OpenAI API");
  add_model_option(*verb, o->scheduler.folder, "language model");
  verb->add_option("--host", o->http.host, "address to listen on (default 127.0.0.1)");
  verb->add_option("--port", o->http.port, "port to listen on; 0 for a free one (default 8000)")
      ->check(integer_in(0, 65535));
  verb->add_option("--name", o->name, "name of the model in the API (default: of its folder)");
  CLI::Option* const key = verb->add_option("--api-key", o->service.api_key,
                                            "key that requests must carry (or DIFFATTN_API_KEY)");
  verb->add_option("--api-key-file", o->api_key_file, "file with that key")->excludes(key);
  verb->add_option("--cors-origin", o->service.cors_origin,
                   "site whose pages may call, or * for all (default: none)");
  verb->add_option("--public-host", o->service.public_host,
                   "name under which a proxy on this machine passes requests on (default: none)");
  verb->add_option("--dtype", o->dtype, "type of the weights (default float32, on a GPU bfloat16)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  add_device_option(*verb, o->scheduler.device);
  add_threads_option(*verb);
  add_limits(*verb, *o);
  verb->footer("Example:\n  diffattn serve --model runs/a --port 8000");
  return [o] { return run_serve(*o); };
}

}  // namespace diffattn::app
