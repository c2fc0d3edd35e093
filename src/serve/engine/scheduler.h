// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "serve/backend.h"

namespace diffattn::serve {

struct SchedulerOptions {
  std::string folder;  // of the model
  std::string device = "cpu", dtype = "float32";
  int64_t max_rows = 64;       // sequences that one step computes
  int64_t max_queue = 256;     // sequences that wait besides
  int64_t cache_tokens = 0;    // room in the KV cache; 0: chosen by the memory of the device
  int64_t prefill_tokens = 0;  // prompt tokens between two steps; 0: chosen by the device
  bool share_prefixes = true;
};

/// Facts of a model's folder that the HTTP side needs.
struct ModelFacts {
  int64_t vocab_size = 0, max_positions = 0;
  int64_t parameters = 0;
  std::vector<int64_t> stop_tokens;
  int64_t cache_tokens = 0;  // room in the KV cache
  std::string engine;        // how steps are computed, for people
};

/// Owns the model and the thread that computes with it: loads it, and then lets jobs join and leave
/// the batch of infer::Batcher at every step.
///   - Jobs wait in the order of their arrival, and sequences of different jobs take turns, so that
///     one request with many sequences does not hold up the others.
///   - Sequences that find no room in the cache wait until others end.
///   - Prompts are computed in parts between steps.
class Scheduler : public Backend {
 public:
  /// Loads the model. Throws io::Error and diffattn::Error.
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler() override;

  const ModelFacts& facts() const;
  /// Begins to compute. Events go to `sink`.
  void start(EventSink sink);
  /// Stops computing. The sink gets no events afterwards.
  void stop();

  bool submit(Job job) override;
  void cancel(uint64_t job, std::optional<size_t> sequence) override;
  BackendLoad load() const override;
  bool attend(std::vector<int64_t> tokens, std::function<void(AttentionRow&&)> done) override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace diffattn::serve
