// SPDX-License-Identifier: Apache-2.0
#include "infer/step_engine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>

namespace diffattn::infer {
namespace {

using torch::Tensor;

constexpr int64_t kLeastCapacity = 256;

int64_t power_of_two_from(int64_t x) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x)));
}

int64_t capacity_for(int64_t tokens) { return std::max(kLeastCapacity, power_of_two_from(tokens)); }

/// Sets the first elements of a row of a device tensor.
template <class T>
void set_row(const Tensor& to, int64_t row, const std::vector<T>& numbers) {
  to.select(0, row)
      .flatten()
      .narrow(0, 0, static_cast<int64_t>(numbers.size()))
      .copy_(torch::tensor(numbers, to.options().device(torch::kCPU)));
}

int64_t common_prefix(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

StepEngine::StepEngine(nn::CausalLM model, StepModel step, const GeneratorOptions& options)
    : model_(std::move(model)),
      step_(std::move(step)),
      options_(options),
      stream_(step_.options().device()),
      cache_(step_.layers(), step_.cached_token(), options.page_size(), step_.options()) {}

StepEngine::~StepEngine() { stream_.synchronize(); }

int64_t StepEngine::pages_for(const std::vector<int64_t>& tokens) const {
  int64_t pages = 0;
  for (const int64_t count : tokens) pages += cache_.pages_for(count);
  return pages;
}

int64_t StepEngine::most_pages() const {
  const int64_t limit = options_.cache_tokens();
  return limit == 0 ? std::numeric_limits<int32_t>::max() - 1 : cache_.pages_for(limit);
}

bool StepEngine::has_room(const std::vector<int64_t>& tokens) {
  return cache_.used_pages() + pages_for(tokens) <= most_pages();
}

bool StepEngine::can_hold(int64_t tokens) const { return pages_for({tokens}) <= most_pages(); }

void StepEngine::join(const std::vector<JoiningRow>& rows) {
  stream_.follow_caller();  // parameters may still be on their way
  const StepStream::Scope scope(stream_);
  reserve(rows);
  std::vector<PrefillRow> fresh;
  std::vector<SharedPrefix> sharing;
  for (const JoiningRow& row : rows) {
    SharedPrefix prefix = shared_prefix(row.prompt);
    cache_.share(prefix.row.pages);
    const auto shared = static_cast<int64_t>(prefix.row.pages.size());
    Slot& slot = slots_[row.slot] = {row.prompt, prefix.row.pages};
    const auto own = cache_.take(cache_.pages_for(row.most_tokens) - shared);
    slot.pages.insert(slot.pages.end(), own.begin(), own.end());
    prefix.row.prompt = &slot.prompt;
    prefix.row.pages = slot.pages;
    if (prefix.row.cached == 0) {
      fresh.push_back(std::move(prefix.row));
    } else {
      sharing.push_back(std::move(prefix));
    }
  }
  prefill(*model_, step_, cache_, fresh);
  for (const SharedPrefix& prefix : sharing) {
    if (prefix.copied_page) {
      const auto index = static_cast<size_t>(prefix.row.cached / cache_.page_size());
      cache_.copy(*prefix.copied_page, prefix.row.pages[index]);
    }
    prefill(*model_, step_, cache_, {prefix.row});
  }
  for (const JoiningRow& row : rows) write_state(row, slots_[row.slot]);
}

void StepEngine::leave(int64_t number) {
  const StepStream::Scope scope(stream_);
  const auto slot = slots_.find(number);
  cache_.give_back(slot->second.pages);  // later work on the stream may write to them
  slots_.erase(slot);
  buffers_->steps.select(0, number).fill_(-1);
  buffers_->positions.select(0, number).zero_();
  buffers_->lengths.select(0, number).fill_(1);
  buffers_->table.select(0, number).zero_();
}

void StepEngine::launch(int64_t slots, int64_t longest) {
  const StepStream::Scope scope(stream_);
  const CapturedStep& step = captured(power_of_two_from(slots), longest);
  step_.kernels().launch(step.work, stream_.handle());
  stream_.mark();
}

token::Chosen StepEngine::chosen(int64_t slot, int64_t step) const {
  const auto* all = static_cast<const token::Chosen*>(buffers_->chosen.const_data_ptr());
  return all[slot * token::Sampling::kRing + step % token::Sampling::kRing];
}

Batcher::Load StepEngine::load() const {
  Batcher::Load load = load_;
  load.used_pages = cache_.used_pages();
  load.pages = std::max<int64_t>(0, cache_.pages() - 1);
  load.cache_bytes = cache_.bytes();
  return load;
}

/// Makes room for more rows. What captured steps refer to may move, and then they are dropped.
void StepEngine::reserve(const std::vector<JoiningRow>& joining) {
  int64_t pages = cache_.used_pages(), longest = 0, rows = 0;
  for (const JoiningRow& row : joining) {
    pages += cache_.pages_for(row.most_tokens);
    longest = std::max(longest, row.most_tokens);
    rows = std::max(rows, power_of_two_from(row.slot + 1));
  }
  const int64_t capacity = capacity_for(longest + depth());
  bool moved = pages > cache_.pages() - 1 &&
               cache_.reserve(std::min(most_pages(), power_of_two_from(pages)));
  moved = step_.reserve_positions(capacity) || moved;
  const int64_t table = cache_.pages_for(capacity);
  if (!buffers_ || buffers_->rows < rows || buffers_->table_pages < table) {
    stream_.synchronize();  // steps on their way write to the old buffers
    auto larger = std::make_unique<StepBuffers>(
        std::max(rows, buffers_ ? buffers_->rows : 0),
        std::max(table, buffers_ ? buffers_->table_pages : 0), step_.widths(), step_.options());
    if (buffers_) larger->take_state(*buffers_);
    stream_.synchronize();  // the copies must not outlive the old buffers
    buffers_ = std::move(larger);
    moved = true;
  }
  if (moved) steps_.clear();
}

/// Returns what a new row can take from the row whose prompt has most in common with its own. A
/// page that the prompt fills only in part is copied, because the new row will write to it.
StepEngine::SharedPrefix StepEngine::shared_prefix(const std::vector<int64_t>& prompt) const {
  const auto wanted = static_cast<int64_t>(prompt.size()) - 1;
  const Slot* best = nullptr;
  int64_t most = 0;
  for (const auto& [number, other] : slots_) {
    const int64_t cached = std::min(static_cast<int64_t>(other.prompt.size()) - 1,
                                    common_prefix(other.prompt, prompt));
    if (cached > most) most = cached, best = &other;
  }
  const int64_t size = cache_.page_size(), whole = std::min(most, wanted) / size;
  const bool all = most >= wanted;
  SharedPrefix prefix;
  prefix.row.cached = all ? wanted : whole * size;
  if (prefix.row.cached == 0) return prefix;
  prefix.row.pages.assign(best->pages.begin(), best->pages.begin() + whole);
  if (prefix.row.cached % size > 0) prefix.copied_page = best->pages[static_cast<size_t>(whole)];
  return prefix;
}

void StepEngine::write_state(const JoiningRow& row, const Slot& slot) {
  StepBuffers& b = *buffers_;
  const auto cached = static_cast<int32_t>(row.prompt.size()) - 1;
  const auto set = [&](const Tensor& to, int32_t value) { to.select(0, row.slot).fill_(value); };
  set(b.tokens, static_cast<int32_t>(row.prompt.back()));
  set(b.positions, cached);
  set(b.lengths, cached + 1);
  set(b.steps, 0);
  b.table.select(0, row.slot).zero_();
  set_row(b.table, row.slot, slot.pages);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&row.rule);
  set_row(b.rules, row.slot, std::vector<uint8_t>(bytes, bytes + sizeof(row.rule)));
  const Tensor counts = b.counts.select(0, row.slot).zero_();
  if (row.rule.repetition == 1.0f) return;
  const Tensor ids = torch::tensor(row.prompt, torch::kLong).to(stream_.device());
  counts.index_fill_(0, ids, static_cast<int16_t>(token::Sampling::kInPrompt));
}

/// Returns the step of `rows` rows whose sequences have up to `tokens` tokens.
const StepEngine::CapturedStep& StepEngine::captured(int64_t rows, int64_t tokens) {
  const int64_t capacity = capacity_for(tokens);
  const auto [at, is_new] = steps_.try_emplace({rows, capacity});
  if (!is_new) return at->second;
  CapturedStep& step = at->second;
  const auto start = std::chrono::steady_clock::now();
  const auto bytes = static_cast<int64_t>(step_.workspace_bytes(*buffers_, cache_, rows, capacity));
  step.workspace = torch::empty({bytes}, step_.options().dtype(torch::kByte));
  step.work = step_.kernels().capture(
      stream_.handle(), [this, rows, capacity, workspace = step.workspace.mutable_data_ptr()] {
        step_.enqueue(*buffers_, cache_, rows, capacity, workspace, stream_.handle());
      });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  load_.capture_seconds += seconds.count();
  ++load_.captures;
  return step;
}

}  // namespace diffattn::infer
