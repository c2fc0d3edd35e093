// SPDX-License-Identifier: Apache-2.0
#include "diffattn/infer/batcher.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "infer/model_engine.h"
#include "infer/step_engine.h"
#include "nn/models/prompts.h"

namespace diffattn::infer {
namespace {

int64_t size_of(const std::vector<int64_t>& ids) { return static_cast<int64_t>(ids.size()); }

token::SamplingRule rule_of(const nn::SamplingOptions& options) {
  return {.seed = options.seed(),
          .temperature = static_cast<float>(options.temperature()),
          .top_p = static_cast<float>(options.top_p()),
          .top_k = static_cast<int32_t>(std::min<int64_t>(options.top_k(), INT32_MAX)),
          .repetition = static_cast<float>(options.repetition_penalty()),
          .presence = static_cast<float>(options.presence_penalty()),
          .frequency = static_cast<float>(options.frequency_penalty())};
}

}  // namespace

struct Batcher::Parts {
  struct Waiting {
    uint64_t number = 0;
    Request request = {};

    int64_t most_tokens() const {
      return size_of(request.prompt) + request.options.max_new_tokens();
    }
  };

  /// A request in a slot.
  struct Running {
    uint64_t number = 0;
    std::vector<int64_t> stops = {};
    int64_t prompt_tokens = 0, wanted = 0;
    int64_t alternatives = 0;
    bool ready = false;    // its prompt is computed
    int64_t launched = 0;  // steps
  };

  /// The slots that a step computes, with the row's own number of the step.
  struct LaunchedStep {
    struct Part {
      int64_t slot;
      uint64_t number;
      int64_t step;
    };
    std::vector<Part> parts;
  };

  nn::CausalLM model = nullptr;
  std::string reason;  // why steps do not use fused kernels
  bool steps = false;
  int64_t max_rows = 0, prefill_tokens = 0;
  std::unique_ptr<Engine> engine;
  uint64_t next_number = 0;
  std::deque<Waiting> waiting;
  std::map<int64_t, Running> running;  // by slot
  std::deque<LaunchedStep> launched;   // and not yet read

  /// Lets waiting requests join, oldest first, as long as there are slots and room.
  void admit() {
    std::vector<JoiningRow> joining;
    std::vector<int64_t> lengths;
    int64_t slot = 0;
    while (!waiting.empty()) {
      while (running.contains(slot)) ++slot;
      lengths.push_back(waiting.front().most_tokens());
      if (slot >= max_rows || !engine->has_room(lengths)) break;
      Waiting next = std::move(waiting.front());
      waiting.pop_front();
      const nn::SamplingOptions& options = next.request.options;
      running[slot] = {.number = next.number,
                       .stops = options.stop_tokens(),
                       .prompt_tokens = size_of(next.request.prompt),
                       .wanted = options.max_new_tokens(),
                       .alternatives = next.request.alternatives};
      joining.push_back({.slot = slot,
                         .prompt = std::move(next.request.prompt),
                         .most_tokens = lengths.back(),
                         .rule = rule_of(options)});
    }
    if (joining.empty()) return;
    try {
      engine->join(joining);
    } catch (...) {  // such as no memory: these requests are gone, the others go on
      for (const JoiningRow& row : joining) leave(row.slot);
      throw;
    }
  }

  /// Computes prompts of the rows that have joined.
  void prefill() {
    try {
      for (const int64_t slot : engine->prefill(prefill_tokens)) running.at(slot).ready = true;
    } catch (...) {  // as in admit()
      std::vector<int64_t> joining;
      for (const auto& [slot, row] : running) {
        if (!row.ready) joining.push_back(slot);
      }
      for (const int64_t slot : joining) leave(slot);
      throw;
    }
  }

  /// Begins a step of all rows that want more tokens. Returns false if there are none.
  bool launch() {
    LaunchedStep step;
    int64_t slots = 0, longest = 0;
    for (auto& [slot, row] : running) {
      if (!row.ready) continue;
      slots = slot + 1;
      longest = std::max(longest, row.prompt_tokens + row.launched);
      if (row.launched < row.wanted) step.parts.push_back({slot, row.number, row.launched});
      ++row.launched;  // rows that wait for their last token compute one that nobody reads
    }
    if (step.parts.empty()) return false;
    engine->launch(slots, longest);
    launched.push_back(std::move(step));
    return true;
  }

  std::vector<NewToken> read() {
    const LaunchedStep step = std::move(launched.front());
    launched.pop_front();
    engine->read();
    std::vector<NewToken> tokens;
    for (const auto& part : step.parts) {
      const auto at = running.find(part.slot);
      if (at == running.end() || at->second.number != part.number) continue;  // ended or cancelled
      const Running& row = at->second;
      const token::Chosen chosen = engine->chosen(part.slot, part.step);
      NewToken token{
          .request = row.number, .token = chosen.token, .log_probability = chosen.log_probability};
      if (chosen.token < 0) {
        token.finish = Finish::kNotFinite;
      } else if (std::ranges::find(row.stops, token.token) != row.stops.end()) {
        token.finish = Finish::kStopToken;
      } else if (part.step + 1 == row.wanted) {
        token.finish = Finish::kLength;
      }
      if (row.alternatives > 0) {
        token.alternatives = engine->likeliest(part.slot, row.alternatives);
      }
      if (token.finish) leave(part.slot);
      tokens.push_back(token);
    }
    return tokens;
  }

  /// Steps that may be on their way: one if a row needs logits, which the next step overwrites.
  int64_t depth() const {
    const bool needs_logits =
        std::ranges::any_of(running, [](const auto& item) { return item.second.alternatives > 0; });
    return needs_logits ? 1 : engine->depth();
  }

  void leave(int64_t slot) {
    engine->leave(slot);
    running.erase(slot);
  }
};

Batcher::Batcher(nn::CausalLM model, const GeneratorOptions& options)
    : parts_(std::make_unique<Parts>()) {
  if (options.max_rows() < 1 || options.max_rows() > token::kMaxRows) {
    throw_argument_error("max_rows", c10::str("1 to ", token::kMaxRows),
                         std::to_string(options.max_rows()));
  }
  if (options.cache_tokens() < 0) {
    throw_argument_error("cache_tokens", "at least 0", std::to_string(options.cache_tokens()));
  }
  if (options.prefill_tokens() < 0) {
    throw_argument_error("prefill_tokens", "at least 0", std::to_string(options.prefill_tokens()));
  }
  const torch::NoGradGuard no_gradients;
  parts_->model = std::move(model);
  parts_->max_rows = options.max_rows();
  parts_->prefill_tokens = options.prefill_tokens();
  auto step = StepModel::make(*parts_->model, parts_->reason);
  parts_->steps = step.has_value();
  if (step) {
    parts_->engine = std::make_unique<StepEngine>(parts_->model, std::move(*step), options);
  } else {
    parts_->engine = std::make_unique<ModelEngine>(parts_->model, options);
  }
}

Batcher::Batcher(Batcher&&) noexcept = default;
Batcher& Batcher::operator=(Batcher&&) noexcept = default;
Batcher::~Batcher() = default;

uint64_t Batcher::submit(Request request) {
  nn::check_generation(*parts_->model, {request.prompt}, request.options);
  Parts::Waiting waiting{parts_->next_number, std::move(request)};
  if (waiting.request.options.max_new_tokens() < 1) {
    throw_argument_error("max_new_tokens", "at least 1", "0");
  }
  if (!parts_->engine->can_hold(waiting.most_tokens())) {
    throw_argument_error("max_new_tokens", "a prompt and continuation that fit into the KV cache",
                         c10::str(waiting.most_tokens(), " tokens"));
  }
  parts_->waiting.push_back(std::move(waiting));
  return parts_->next_number++;
}

void Batcher::cancel(uint64_t request) {
  std::erase_if(parts_->waiting, [&](const Parts::Waiting& w) { return w.number == request; });
  for (const auto& [slot, row] : parts_->running) {
    if (row.number == request) return parts_->leave(slot);
  }
}

std::vector<NewToken> Batcher::step() {
  Parts& parts = *parts_;
  parts.admit();
  parts.prefill();
  while (std::ssize(parts.launched) < parts.depth() && parts.launch()) {
  }
  return parts.launched.empty() ? std::vector<NewToken>() : parts.read();
}

bool Batcher::idle() const { return parts_->waiting.empty() && parts_->running.empty(); }

bool Batcher::contains(uint64_t request) const {
  const auto is_it = [&](const auto& row) { return row.number == request; };
  return std::ranges::any_of(parts_->waiting, is_it) ||
         std::ranges::any_of(parts_->running, [&](const auto& item) { return is_it(item.second); });
}

Batcher::Load Batcher::load() const {
  Load load = parts_->engine->load();
  load.running = std::ssize(parts_->running);
  load.waiting = std::ssize(parts_->waiting);
  return load;
}

bool Batcher::uses_steps() const { return parts_->steps; }
const std::string& Batcher::reason() const { return parts_->reason; }

}  // namespace diffattn::infer
