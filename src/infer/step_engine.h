// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "infer/engine.h"
#include "infer/paged_cache.h"
#include "infer/prefill.h"
#include "infer/step_buffers.h"
#include "infer/step_model.h"
#include "infer/step_stream.h"

namespace diffattn::infer {

/// Computes steps with the fused kernels: on a GPU one graph launch per step, on a CPU one call.
class StepEngine : public Engine {
 public:
  StepEngine(nn::CausalLM model, StepModel step, const GeneratorOptions& options);
  ~StepEngine() override;

  bool has_room(const std::vector<int64_t>& tokens) override;
  bool can_hold(int64_t tokens) const override;
  void join(const std::vector<JoiningRow>& rows) override;
  std::vector<int64_t> prefill(int64_t budget) override;
  void leave(int64_t slot) override;
  void launch(int64_t slots, int64_t longest) override;
  void read() override { stream_.wait_for_mark(); }
  token::Chosen chosen(int64_t slot, int64_t step) const override;
  std::vector<Alternative> likeliest(int64_t slot, int64_t count) const override;
  int64_t depth() const override { return stream_.device().is_cpu() ? 1 : 2; }
  Batcher::Load load() const override;

 private:
  /// A row in its slot.
  struct Slot {
    std::vector<int64_t> prompt = {};
    std::vector<int32_t> pages = {};
    int64_t tokens = 0;  // of the sequence in the next step
    int64_t most_tokens = 0;
    token::SamplingRule rule = {};
    int64_t cached = 0;    // tokens of the prompt whose keys and values are in the pages
    int64_t planned = 0;   // the same after the prefill on its way
    bool started = false;  // its prompt is being computed

    /// The first step computes the last token.
    int64_t prefill_tokens() const { return static_cast<int64_t>(prompt.size()) - 1; }
  };
  /// The tokens of a prompt that another row has computed: whole pages, and perhaps one to copy.
  struct SharedPrefix {
    std::vector<int32_t> pages = {};
    std::optional<int32_t> copied_page = {};
    int64_t tokens = 0;
  };
  struct CapturedStep {
    torch::Tensor workspace;
    std::shared_ptr<void> work;
  };

  int64_t pages_for(const std::vector<int64_t>& tokens) const;
  int64_t most_pages() const;
  int64_t tokens_ahead(int64_t tokens, int64_t most_tokens) const;
  void reserve(int64_t new_pages, int64_t rows, int64_t tokens);
  void grow(int64_t slots);
  std::vector<PrefillRow> next_chunks(int64_t budget);
  bool waits_for_prefix(size_t place) const;
  SharedPrefix shared_prefix(const std::vector<int64_t>& prompt) const;
  void take_prefix(Slot& slot, const SharedPrefix& prefix);
  void write_state(int64_t number, const Slot& slot);
  const CapturedStep& captured(int64_t rows, int64_t tokens);

  nn::CausalLM model_;
  StepModel step_;
  GeneratorOptions options_;
  StepStream stream_;  // before what its work uses
  PagedCache cache_;
  std::unique_ptr<StepBuffers> buffers_;
  std::map<int64_t, Slot> slots_;
  std::vector<int64_t> joining_;  // slots whose prompts are not yet computed, the oldest first
  std::map<std::pair<int64_t, int64_t>, CapturedStep> steps_;  // by rows and capacity
  Batcher::Load load_;
};

}  // namespace diffattn::infer
