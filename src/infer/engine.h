// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "diffattn/infer/batcher.h"
#include "kernels/token_step.h"

namespace diffattn::infer {

/// A row that joins a batch.
struct JoiningRow {
  int64_t slot = 0;
  std::vector<int64_t> prompt = {};
  int64_t most_tokens = 0;  // of prompt and continuation
  token::SamplingRule rule = {};
};

/// Computes steps of a batch of rows in numbered slots. Steps are read in the order of their
/// launches.
class Engine {
 public:
  virtual ~Engine() = default;

  /// True if there is room for rows of these lengths in the cache, besides the rows in it.
  virtual bool has_room(const std::vector<int64_t>& tokens) = 0;
  /// True if a row of this length fits into an empty cache.
  virtual bool can_hold(int64_t tokens) const = 0;

  /// Gives rows their slots. They take part in steps when `prefill` has computed their prompts.
  virtual void join(const std::vector<JoiningRow>& rows) = 0;
  /// Computes up to about `budget` tokens of prompts (0: all) and returns the slots that are ready.
  virtual std::vector<int64_t> prefill(int64_t budget) = 0;
  /// Also for a row whose `join` or `prefill` has thrown.
  virtual void leave(int64_t slot) = 0;

  /// Begins the next step, of slots [0, slots). Their sequences have up to `longest` tokens.
  virtual void launch(int64_t slots, int64_t longest) = 0;
  /// Waits for the oldest step that was not read. Afterwards `chosen` has its tokens.
  virtual void read() = 0;
  /// The token that a slot chose in its own step number `step`, which was read.
  virtual token::Chosen chosen(int64_t slot, int64_t step) const = 0;

  /// Returns the `count` likeliest next tokens of a slot in the step that was read last. No other
  /// step may have begun since.
  virtual std::vector<Alternative> likeliest(int64_t slot, int64_t count) const = 0;

  /// Steps that may be begun before the first one is read.
  virtual int64_t depth() const = 0;
  virtual Batcher::Load load() const = 0;
};

}  // namespace diffattn::infer
