// SPDX-License-Identifier: Apache-2.0
#include "serve/engine/scheduler.h"

#include <torch/torch.h>

#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "diffattn/infer/batcher.h"
#include "infer/prompt_score.h"
#include "serve/engine/attention_row.h"
#include "serve/engine/served_model.h"

namespace diffattn::serve {
namespace {

nn::SamplingOptions sampling_of(const Rules& rules) {
  return nn::SamplingOptions()
      .max_new_tokens(rules.max_tokens)
      .temperature(rules.temperature)
      .top_p(rules.top_p)
      .top_k(rules.top_k)
      .repetition_penalty(rules.repetition_penalty)
      .presence_penalty(rules.presence_penalty)
      .frequency_penalty(rules.frequency_penalty)
      .seed(rules.seed)
      .stop_tokens(rules.stop_tokens);
}

std::vector<Alternative> alternatives_of(const std::vector<infer::Alternative>& from) {
  std::vector<Alternative> to;
  for (const auto& [token, log_probability] : from) to.push_back({token, log_probability});
  return to;
}

End end_of(infer::Finish finish) {
  switch (finish) {
    case infer::Finish::kStopToken: return End::kStopToken;
    case infer::Finish::kLength: return End::kLength;
    default: return End::kNotFinite;
  }
}

/// A message for the client: torch's own has a backtrace and names files of this machine.
std::string message_of(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr) return error.what();
  return "the server could not compute the request; it may be out of memory";
}

}  // namespace

struct Scheduler::Parts {
  using Key = std::pair<uint64_t, size_t>;  // job and sequence

  /// A job whose sequences wait or are computed.
  struct Open {
    Job job = {};
    std::deque<size_t> waiting = {};                   // sequences
    std::map<size_t, infer::PromptScore> scores = {};  // of prompts that are scored
    std::map<size_t, uint64_t> requests = {};          // numbers in the batcher
  };
  struct Look {
    std::vector<int64_t> tokens = {};
    std::function<void(AttentionRow&&)> done = {};
  };
  struct Cancel {
    uint64_t job = 0;
    std::optional<size_t> sequence = {};
  };

  SchedulerOptions options;
  ModelFacts facts;
  nn::CausalLM model = nullptr;
  std::unique_ptr<infer::Batcher> batcher;
  EventSink sink;

  // Shared with other threads.
  std::mutex mutex;
  std::condition_variable news;
  std::deque<Job> arrived;
  std::vector<Cancel> cancelled;
  std::deque<Look> looks;
  bool stopping = false;
  int64_t outstanding = 0;  // sequences that have not ended
  BackendLoad load;
  int threads = 1;

  // The inference thread's own.
  std::map<uint64_t, Open> jobs;
  std::list<uint64_t> turns;  // jobs with waiting sequences, whose turn is first
  std::deque<Key> scoring;    // sequences whose prompts are scored, one at a time
  std::map<uint64_t, Key> by_request;
  std::vector<Event> events;
  int64_t ended = 0;  // sequences since outstanding was counted
  std::thread thread;

  void run() {
    torch::set_num_threads(threads);
    bool running = true;
    while (running) {
      try {
        running = take_news();
        if (running) compute();
      } catch (const std::exception&) {  // no memory for the lists: go on with what there is
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }

  void compute() {
    try {
      end_late_jobs();
      start_sequences();
      score_next();
      look_next();
      step();
    } catch (const std::exception& error) {
      fail_lost(message_of(error));
    }
    send_events();
  }

  /// Takes jobs and cancellations; waits if there is nothing to do. Returns false at the end.
  bool take_news() {
    std::vector<Cancel> cancels;
    {
      std::unique_lock lock(mutex);
      news.wait(lock, [&] {
        return stopping || !arrived.empty() || !cancelled.empty() || !jobs.empty() ||
               !looks.empty() || !events.empty();
      });
      if (stopping) return false;
      for (; !arrived.empty(); arrived.pop_front()) take(arrived.front());
      cancels.swap(cancelled);
    }
    for (const Cancel& cancel : cancels) drop(cancel);
    if (!cancels.empty()) send_events();
    return true;
  }

  /// Opens a job. Changes nothing if it finds no memory, so that the job can be taken later.
  void take(Job& job) {
    const auto at = jobs.try_emplace(job.number).first;
    try {
      for (size_t i = 0; i < job.sequences.size(); ++i) at->second.waiting.push_back(i);
      turns.push_back(job.number);
    } catch (...) {
      jobs.erase(at);
      throw;
    }
    at->second.job = std::move(job);
  }

  /// Sends the events. If the sink throws, they stay for the next time: no answer may miss its end.
  void send_events() {
    {
      const std::lock_guard lock(mutex);
      outstanding -= std::exchange(ended, 0);
      const infer::Batcher::Load now = batcher->load();
      load = {.running = now.running,
              .waiting = outstanding - now.running,
              .used_pages = now.used_pages,
              .pages = std::max(now.pages, facts.cache_tokens / 64)};
    }
    if (!events.empty()) sink(std::move(events));
    events.clear();
  }

  // --- The life of a sequence --------------------------------------------------------------------

  /// Lets waiting sequences in: one of each job in turn, as many as the batch has places for.
  void start_sequences() {
    int64_t places = options.max_rows - std::ssize(by_request) - std::ssize(scoring);
    while (places > 0 && !turns.empty()) {
      const uint64_t number = turns.front();
      Open& open = jobs.at(number);
      const size_t index = open.waiting.front();
      const Sequence& sequence = open.job.sequences[index];
      --places;
      try {
        if (sequence.score_prompt) {
          open.scores.emplace(index,
                              infer::PromptScore(model, sequence.prompt, sequence.alternatives));
          scoring.emplace_back(number, index);
        } else {
          generate(number, index);
        }
      } catch (const std::exception& error) {
        end({number, index}, End::kFailed, message_of(error));
        continue;
      }
      open.waiting.pop_front();
      turns.splice(turns.end(), turns, turns.begin());
      if (open.waiting.empty()) turns.pop_back();
    }
  }

  void generate(uint64_t number, size_t index) {
    Open& open = jobs.at(number);
    const Sequence& sequence = open.job.sequences[index];
    const uint64_t request =
        batcher->submit({sequence.prompt, sampling_of(sequence.rules), sequence.alternatives});
    try {
      open.requests[index] = request;
      by_request[request] = {number, index};
    } catch (...) {  // nobody would know whose tokens these are
      batcher->cancel(request);
      open.requests.erase(index);
      throw;
    }
  }

  /// Scores a part of the prompt whose turn it is.
  void score_next() {
    if (scoring.empty()) return;
    const auto [number, index] = scoring.front();
    scoring.pop_front();
    Open& open = jobs.at(number);
    infer::PromptScore& score = open.scores.at(index);
    try {
      if (score.advance(options.prefill_tokens)) return scoring.emplace_back(number, index), void();
      Event event{.job = number, .sequence = index};
      for (const infer::ScoredToken& scored : score.take_scores()) {
        Token& token = event.prompt.emplace_back();
        token.id = scored.token;
        if (event.prompt.size() > 1) token.log_probability = scored.log_probability;
        token.alternatives = alternatives_of(scored.alternatives);
      }
      events.push_back(std::move(event));
      open.scores.erase(index);
      if (open.job.sequences[index].rules.max_tokens > 0) return generate(number, index);
      end({number, index}, End::kLength);
    } catch (const std::exception& error) {
      end({number, index}, End::kFailed, message_of(error));
    }
  }

  /// Computes the attention of one text.
  void look_next() {
    Look look;
    {
      const std::lock_guard lock(mutex);
      if (looks.empty()) return;
      look = std::move(looks.front());
      looks.pop_front();
    }
    AttentionRow row;
    try {
      row = attention_of_last(model, look.tokens);
    } catch (const std::exception& error) {
      row.error = message_of(error);
    }
    look.done(std::move(row));
  }

  void step() {
    if (batcher->idle()) return;
    for (infer::NewToken& token : batcher->step()) {
      const auto [job, sequence] = by_request.at(token.request);
      Event event{.job = job, .sequence = sequence};
      if (token.finish != infer::Finish::kNotFinite) {
        event.token =
            Token{token.token, token.log_probability, alternatives_of(token.alternatives)};
      }
      events.push_back(std::move(event));
      if (token.finish) end({job, sequence}, end_of(*token.finish));
    }
  }

  /// Ends a sequence with its last event, or without one if nobody asked for it any more.
  void end(const Key& key, std::optional<End> reason, std::string message = "") {
    const auto at = jobs.find(key.first);
    if (at == jobs.end()) return;
    if (reason) {  // first: it may find no memory, and then nothing has changed
      if (events.empty() || events.back().job != key.first ||
          events.back().sequence != key.second || events.back().end) {
        events.push_back({.job = key.first, .sequence = key.second});
      }
      events.back().end = reason;
      events.back().message = std::move(message);
    }
    Open& open = at->second;
    if (const auto request = open.requests.find(key.second); request != open.requests.end()) {
      batcher->cancel(request->second);
      by_request.erase(request->second);
      open.requests.erase(request);
    }
    if (open.scores.erase(key.second) > 0) std::erase(scoring, key);
    if (std::erase(open.waiting, key.second) > 0 && open.waiting.empty()) turns.remove(key.first);
    ++ended;
    if (open.waiting.empty() && open.scores.empty() && open.requests.empty()) jobs.erase(at);
  }

  std::vector<Key> sequences_of(uint64_t number) const {
    std::vector<Key> keys;
    const Open& open = jobs.at(number);
    for (const size_t index : open.waiting) keys.emplace_back(number, index);
    for (const auto& [index, score] : open.scores) keys.emplace_back(number, index);
    for (const auto& [index, request] : open.requests) keys.emplace_back(number, index);
    return keys;
  }

  void drop(const Cancel& cancel) {
    if (!jobs.contains(cancel.job)) return;
    for (const Key& key : sequences_of(cancel.job)) {
      if (!cancel.sequence || *cancel.sequence == key.second) end(key, std::nullopt);
    }
  }

  void end_late_jobs() {
    const auto now = Clock::now();
    std::vector<Key> late;
    for (const auto& [number, open] : jobs) {
      if (now < open.job.deadline) continue;
      const auto keys = sequences_of(number);
      late.insert(late.end(), keys.begin(), keys.end());
    }
    for (const Key& key : late) end(key, End::kTimeout);
  }

  /// After an exception: fails the sequences that the batcher has dropped, or all if it dropped
  /// none, since the next step would throw again.
  void fail_lost(const std::string& message) {
    std::vector<Key> lost, all;
    for (const auto& [request, key] : by_request) {
      all.push_back(key);
      if (!batcher->contains(request)) lost.push_back(key);
    }
    for (const Key& key : lost.empty() ? all : lost) end(key, End::kFailed, message);
  }
};

Scheduler::Scheduler(const SchedulerOptions& options) : parts_(std::make_unique<Parts>()) {
  Parts& parts = *parts_;
  parts.model = load_served_model(options);
  const nn::ModelConfig& config = parts.model->config;
  parts.options = resolved(options, config);
  parts.threads = torch::get_num_threads();
  parts.batcher = std::make_unique<infer::Batcher>(
      parts.model, infer::GeneratorOptions()
                       .max_rows(parts.options.max_rows)
                       .cache_tokens(parts.options.cache_tokens)
                       .prefill_tokens(parts.options.prefill_tokens)
                       .share_prefixes(parts.options.share_prefixes));
  parts.facts = {.vocab_size = config.vocab_size,
                 .max_positions = config.max_position_embeddings,
                 .parameters = 0,
                 .stop_tokens = {},
                 .cache_tokens = parts.options.cache_tokens,
                 .engine = parts.batcher->uses_steps()
                               ? "fused steps"
                               : "the modules, row by row: " + parts.batcher->reason()};
  for (const auto& parameter : parts.model->parameters()) {
    parts.facts.parameters += parameter.numel();
  }
  if (config.eos_token_id) parts.facts.stop_tokens.push_back(*config.eos_token_id);
}

Scheduler::~Scheduler() { stop(); }

void Scheduler::stop() {
  {
    const std::lock_guard lock(parts_->mutex);
    parts_->stopping = true;
  }
  parts_->news.notify_one();
  if (parts_->thread.joinable()) parts_->thread.join();
}

const ModelFacts& Scheduler::facts() const { return parts_->facts; }

void Scheduler::start(EventSink sink) {
  parts_->sink = std::move(sink);
  parts_->thread = std::thread([this] { parts_->run(); });
}

bool Scheduler::submit(Job job) {
  {
    const std::lock_guard lock(parts_->mutex);
    const int64_t room = parts_->options.max_rows + parts_->options.max_queue;
    const int64_t count = std::ssize(job.sequences);
    if (parts_->outstanding > 0 && parts_->outstanding + count > room) return false;
    parts_->arrived.push_back(std::move(job));
    parts_->outstanding += count;  // last: nothing is counted if there is no memory
  }
  parts_->news.notify_one();
  return true;
}

void Scheduler::cancel(uint64_t job, std::optional<size_t> sequence) {
  {
    const std::lock_guard lock(parts_->mutex);
    parts_->cancelled.push_back({job, sequence});
  }
  parts_->news.notify_one();
}

bool Scheduler::attend(std::vector<int64_t> tokens, std::function<void(AttentionRow&&)> done) {
  constexpr size_t kMostLooks = 16;
  {
    const std::lock_guard lock(parts_->mutex);
    if (parts_->looks.size() >= kMostLooks) return false;
    parts_->looks.push_back({std::move(tokens), std::move(done)});
  }
  parts_->news.notify_one();
  return true;
}

BackendLoad Scheduler::load() const {
  const std::lock_guard lock(parts_->mutex);
  BackendLoad load = parts_->load;
  load.waiting = parts_->outstanding - load.running;
  return load;
}

}  // namespace diffattn::serve
