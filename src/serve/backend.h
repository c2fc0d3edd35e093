// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

// Messages between the HTTP side and the inference thread. No type of torch passes here.

namespace diffattn::serve {

using Clock = std::chrono::steady_clock;

/// How a sequence is continued; see nn::SamplingOptions.
struct Rules {
  int64_t max_tokens = 16;  // 0: only the prompt's log-probabilities
  double temperature = 1.0, top_p = 1.0;
  int64_t top_k = 0;
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  uint64_t seed = 0;
  std::vector<int64_t> stop_tokens;
};

struct Sequence {
  std::vector<int64_t> prompt;
  Rules rules;
  int64_t alternatives = 0;   // likeliest tokens that each token comes with
  bool score_prompt = false;  // gives the log-probabilities of the prompt's tokens, too
};

/// The sequences of one request.
struct Job {
  uint64_t number = 0;
  std::vector<Sequence> sequences = {};
  Clock::time_point deadline = Clock::time_point::max();
};

struct Alternative {
  int64_t id = 0;
  float log_probability = 0.0f;
};

struct Token {
  int64_t id = 0;
  std::optional<float> log_probability = {};  // none for the first token of a prompt
  std::vector<Alternative> alternatives = {};
};

enum class End : uint8_t { kStopToken, kLength, kNotFinite, kTimeout, kFailed };

/// News of a sequence.
struct Event {
  uint64_t job = 0;
  size_t sequence = 0;
  std::vector<Token> prompt = {};   // with score_prompt, before the first new token
  std::optional<Token> token = {};  // new
  std::optional<End> end = {};      // the sequence has no further events
  std::string message = {};         // of kFailed
};

/// Receives the events of a step, on the inference thread: it must return quickly. If it throws, it
/// may not have taken them, and gets them again.
using EventSink = std::function<void(std::vector<Event>&& events)>;

struct BackendLoad {
  int64_t running = 0, waiting = 0;   // sequences
  int64_t used_pages = 0, pages = 0;  // of the KV cache
};

/// Where the last token of a text looks, in the last layer.
struct AttentionRow {
  struct Head {
    float lambda = 0.0f;
    std::vector<float> first, second, difference;  // weights of the text's tokens
  };
  std::vector<Head> heads = {};
  std::string error = {};  // why there are no heads
};

/// Computes jobs in a thread of its own. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Queues a job, whose events go to the sink. Returns false if the queue is full.
  virtual bool submit(Job job) = 0;
  /// Drops a job, or one of its sequences. Its events end soon after.
  virtual void cancel(uint64_t job, std::optional<size_t> sequence = {}) = 0;
  virtual BackendLoad load() const = 0;

  /// Computes where the last token of a text looks and calls `done` with it, on the inference
  /// thread. Returns false if too many texts wait.
  virtual bool attend(std::vector<int64_t> tokens, std::function<void(AttentionRow&&)> done) = 0;
};

}  // namespace diffattn::serve
