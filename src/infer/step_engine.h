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
  void leave(int64_t slot) override;
  void launch(int64_t slots, int64_t longest) override;
  void read() override { stream_.wait_for_mark(); }
  token::Chosen chosen(int64_t slot, int64_t step) const override;
  int64_t depth() const override { return stream_.device().is_cpu() ? 1 : 2; }
  Batcher::Load load() const override;

 private:
  /// A row in its slot.
  struct Slot {
    std::vector<int64_t> prompt = {};
    std::vector<int32_t> pages = {};
    int64_t tokens = 0;  // of the sequence in the next step
    int64_t most_tokens = 0;
  };
  /// The tokens of a prompt that another row has computed: whole pages, and perhaps one to copy.
  struct SharedPrefix {
    PrefillRow row = {};
    std::optional<int32_t> copied_page = {};
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
  SharedPrefix shared_prefix(const std::vector<int64_t>& prompt) const;
  void write_state(const JoiningRow& row, const Slot& slot);
  const CapturedStep& captured(int64_t rows, int64_t tokens);

  nn::CausalLM model_;
  StepModel step_;
  GeneratorOptions options_;
  StepStream stream_;  // before what its work uses
  PagedCache cache_;
  std::unique_ptr<StepBuffers> buffers_;
  std::map<int64_t, Slot> slots_;
  std::map<std::pair<int64_t, int64_t>, CapturedStep> steps_;  // by rows and capacity
  Batcher::Load load_;
};

}  // namespace diffattn::infer
