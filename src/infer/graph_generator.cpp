// SPDX-License-Identifier: Apache-2.0
#include "infer/graph_generator.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <deque>

#include "nn/models/prompts.h"

namespace diffattn::infer {
namespace {

using torch::Tensor;
namespace token = cuda::token;
using Rows = GraphGenerator::Rows;

constexpr int64_t kLeastCapacity = 256;
/// Tokens of padded prompts that the model computes at once.
constexpr int64_t kPrefillTokens = 32768;

int64_t size_of(const std::vector<int64_t>& prompt) { return static_cast<int64_t>(prompt.size()); }

int64_t power_of_two_from(int64_t x) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x)));
}

c10::Stream new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

/// Copies host numbers to the first elements of a device tensor.
template <class T>
void copy_to(const Tensor& to, const std::vector<T>& numbers, torch::ScalarType type) {
  to.flatten()
      .narrow(0, 0, static_cast<int64_t>(numbers.size()))
      .copy_(torch::tensor(numbers, type));
}

/// Gives every row its own sequence of random numbers.
uint64_t seed_of(uint64_t seed, size_t row) { return seed + row * 0xD1B54A32D192ED03ull; }

}  // namespace

GraphGenerator::GraphGenerator(nn::CausalLM model, StepModel step, const GeneratorOptions& options)
    : model_(std::move(model)),
      step_(std::move(step)),
      options_(options),
      cache_(step_.layers(), step_.cached_token(), options.page_size(), step_.options()),
      stream_(new_stream(step_.options().device())) {}

Rows GraphGenerator::generate(const Rows& prompts, const nn::SamplingOptions& options,
                              const nn::OnToken& on_token) {
  const c10::InferenceMode inference;
  const c10::DeviceGuard device(stream_.device());
  {  // parameters may still be on their way on the caller's stream
    const auto current =
        c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device());
    c10::Event ready(stream_.device_type());
    ready.record(current);
    ready.block(stream_);
  }
  const c10::StreamGuard stream(stream_);
  Rows results;
  for (size_t first = 0; first < prompts.size();) {
    const size_t last = std::min(prompts.size(), first + static_cast<size_t>(options_.max_rows()));
    const Rows some(prompts.begin() + static_cast<ptrdiff_t>(first),
                    prompts.begin() + static_cast<ptrdiff_t>(last));
    nn::OnToken report;
    if (on_token) report = [&](size_t row, int64_t id) { return on_token(first + row, id); };
    for (auto& row : run(some, options, report, first)) results.push_back(std::move(row));
    first = last;
  }
  return results;
}

Rows GraphGenerator::run(const Rows& prompts, const nn::SamplingOptions& options,
                         const nn::OnToken& on_token, size_t first) {
  reserve(prompts, options.max_new_tokens());
  Work work{prompts, options, first, {}};
  struct Return {  // also after an exception
    PagedCache& cache;
    Work& work;
    c10::Stream stream;
    ~Return() {
      stream.synchronize();
      for (const auto& pages : work.pages) cache.give_back(pages);
    }
  } give_back{cache_, work, stream_};
  for (const auto& prompt : prompts) {
    work.pages.push_back(cache_.take(cache_.pages_for(size_of(prompt) + options.max_new_tokens())));
  }
  prefill(work);
  write_state(work);
  return decode(work, on_token);
}

/// Makes room for the rows. What the graphs refer to may move, and then they are dropped.
void GraphGenerator::reserve(const Rows& prompts, int64_t new_tokens) {
  int64_t pages = 0, longest = 0;
  for (const auto& prompt : prompts) {
    pages += cache_.pages_for(size_of(prompt) + new_tokens);
    longest = std::max(longest, size_of(prompt) + new_tokens);
  }
  const int64_t rows = power_of_two_from(static_cast<int64_t>(prompts.size()));
  const int64_t capacity = std::max(kLeastCapacity, power_of_two_from(longest));
  bool moved = cache_.pages() < pages + 1 && cache_.reserve(power_of_two_from(pages));
  moved = step_.reserve_positions(capacity) || moved;
  const int64_t table = cache_.pages_for(capacity);
  if (!buffers_ || buffers_->rows < rows || buffers_->table_pages < table) {
    const int64_t old_rows = buffers_ ? buffers_->rows : 0;
    const int64_t old_table = buffers_ ? buffers_->table_pages : 0;
    steps_.clear();
    buffers_ = std::make_unique<StepBuffers>(std::max(rows, old_rows), std::max(table, old_table),
                                             step_.widths(), step_.options());
  }
  if (moved) steps_.clear();
}

/// Computes all tokens of the prompts but the last, which the first step computes.
void GraphGenerator::prefill(const Work& work) {
  std::vector<size_t> longer;  // prompts of more than one token
  int64_t longest = 0;
  for (size_t row = 0; row < work.prompts.size(); ++row) {
    if (work.prompts[row].size() > 1) longer.push_back(row);
    longest = std::max(longest, size_of(work.prompts[row]) - 1);
  }
  const auto at_once =
      static_cast<size_t>(std::max<int64_t>(1, kPrefillTokens / std::max<int64_t>(1, longest)));
  for (size_t begin = 0; begin < longer.size(); begin += at_once) {
    const size_t end = std::min(longer.size(), begin + at_once);
    Rows heads;
    std::vector<std::vector<int32_t>> pages;
    std::vector<int64_t> tokens;
    for (size_t i = begin; i < end; ++i) {
      const size_t row = longer[i];
      heads.emplace_back(work.prompts[row].begin(), work.prompts[row].end() - 1);
      pages.push_back(work.pages[row]);
      tokens.push_back(size_of(heads.back()));
    }
    const nn::PaddedPrompts padded = nn::pad_left(heads, stream_.device());
    nn::KvCaches caches(model_->model->layers.size());
    nn::DecoderInput input;
    input.ids = padded.ids;
    input.caches = &caches;
    if (heads.size() > 1) {
      input.positions = padded.positions;
      input.mask.key_starts(padded.starts);
    }
    model_->forward(input);
    const Tensor columns = torch::arange(padded.ids.size(1), padded.ids.options());
    const Tensor real = (columns.unsqueeze(0) >= padded.starts.unsqueeze(1)).flatten();
    const Tensor kept = real.nonzero().squeeze(1);
    const PagedCache::Places places = cache_.places(pages, tokens);
    for (size_t layer = 0; layer < caches.size(); ++layer) {
      const auto rows = [&](size_t slot) {
        return caches[layer].filled(slot).flatten(0, 1).index_select(0, kept);
      };
      cache_.write(static_cast<int64_t>(layer), places, step_.cached_keys(rows(0)), rows(1));
      caches[layer].clear();
    }
  }
}

void GraphGenerator::write_state(const Work& work) {
  const auto table_pages = static_cast<size_t>(buffers_->table_pages);
  std::vector<int32_t> tokens, positions, lengths, steps, table;
  std::vector<uint8_t> rules;
  for (size_t row = 0; row < static_cast<size_t>(buffers_->rows); ++row) {
    const bool used = row < work.prompts.size();
    const auto cached = used ? static_cast<int32_t>(work.prompts[row].size()) - 1 : 0;
    tokens.push_back(used ? static_cast<int32_t>(work.prompts[row].back()) : 0);
    positions.push_back(cached);
    lengths.push_back(cached + 1);
    steps.push_back(used ? 0 : -1);
    if (used) table.insert(table.end(), work.pages[row].begin(), work.pages[row].end());
    table.resize((row + 1) * table_pages, 0);
    const nn::SamplingOptions& o = work.options;
    const token::SamplingRule rule{.seed = seed_of(o.seed(), work.first + row),
                                   .temperature = static_cast<float>(o.temperature()),
                                   .top_p = static_cast<float>(o.top_p()),
                                   .top_k = static_cast<int32_t>(o.top_k()),
                                   .repetition = static_cast<float>(o.repetition_penalty())};
    const auto* bytes = reinterpret_cast<const uint8_t*>(&rule);
    rules.insert(rules.end(), bytes, bytes + sizeof(rule));
  }
  copy_to(buffers_->tokens, tokens, torch::kInt);
  copy_to(buffers_->positions, positions, torch::kInt);
  copy_to(buffers_->lengths, lengths, torch::kInt);
  copy_to(buffers_->steps, steps, torch::kInt);
  copy_to(buffers_->table, table, torch::kInt);
  copy_to(buffers_->rules, rules, torch::kByte);
  write_counts(work);
}

/// Marks the tokens that occur in the prompts.
void GraphGenerator::write_counts(const Work& work) {
  buffers_->counts.zero_();
  if (work.options.repetition_penalty() == 1.0) return;
  std::vector<int64_t> rows, ids;
  for (size_t row = 0; row < work.prompts.size(); ++row) {
    rows.insert(rows.end(), work.prompts[row].size(), static_cast<int64_t>(row));
    ids.insert(ids.end(), work.prompts[row].begin(), work.prompts[row].end());
  }
  const auto on_device = [&](const std::vector<int64_t>& numbers) {
    return torch::tensor(numbers, torch::kLong).to(stream_.device());
  };
  constexpr auto kInPrompt = static_cast<int16_t>(token::Sampling::kInPrompt);
  buffers_->counts.index_put_({on_device(rows), on_device(ids)}, torch::tensor(kInPrompt));
}

/// Launches steps and reads their tokens one step late, so that the GPU never waits for the host.
/// Tokens that a row computes after its end are dropped.
Rows GraphGenerator::decode(const Work& work, const nn::OnToken& on_token) {
  constexpr int64_t kInFlight = 2;
  static_assert(kInFlight < token::Sampling::kRing);
  const int64_t wanted = work.options.max_new_tokens();
  const auto rows = power_of_two_from(static_cast<int64_t>(work.prompts.size()));
  const auto& stops = work.options.stop_tokens();
  int64_t longest = 0;
  for (const auto& prompt : work.prompts) longest = std::max(longest, size_of(prompt));
  Rows results(work.prompts.size());
  std::vector<bool> alive(results.size(), true);
  std::deque<c10::Event> running;
  for (int64_t launched = 0, read = 0; read < wanted; ++read) {
    for (; launched < wanted && launched - read < kInFlight; ++launched) {
      const CapturedStep& step = captured(rows, longest + launched);
      ops::cuda_token_step()->launch(step.graph, stream_.native_handle());
      running.emplace_back(stream_.device_type());
      running.back().record(stream_);
    }
    running.front().synchronize();
    running.pop_front();
    const auto* chosen = static_cast<const token::Chosen*>(buffers_->chosen.const_data_ptr());
    for (size_t row = 0; row < results.size(); ++row) {
      if (!alive[row]) continue;
      const int32_t id =
          chosen[row * token::Sampling::kRing + static_cast<size_t>(read % token::Sampling::kRing)]
              .token;
      if (id < 0) {
        throw_argument_error("model", "parameters that give finite logits",
                             c10::str("infinite or NaN logits for prompt ", work.first + row));
      }
      results[row].push_back(id);
      if (on_token && !on_token(row, id)) alive[row] = false;
      if (std::ranges::find(stops, int64_t{id}) != stops.end()) alive[row] = false;
    }
    if (std::ranges::find(alive, true) == alive.end()) break;
  }
  return results;
}

/// Returns the step of `rows` rows whose sequences have up to `tokens` tokens.
const GraphGenerator::CapturedStep& GraphGenerator::captured(int64_t rows, int64_t tokens) {
  const int64_t capacity = std::max(kLeastCapacity, power_of_two_from(tokens));
  const auto [at, is_new] = steps_.try_emplace({rows, capacity});
  if (!is_new) return at->second;
  CapturedStep& step = at->second;
  const auto bytes = static_cast<int64_t>(step_.workspace_bytes(*buffers_, cache_, rows, capacity));
  step.workspace = torch::empty({bytes}, step_.options().dtype(torch::kByte));
  step.graph = ops::cuda_token_step()->capture(stream_.native_handle(), [&] {
    step_.enqueue(*buffers_, cache_, rows, capacity, step.workspace.mutable_data_ptr(),
                  stream_.native_handle());
  });
  return step;
}

}  // namespace diffattn::infer
