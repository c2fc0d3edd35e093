// SPDX-License-Identifier: Apache-2.0
#include "infer/step_engine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>

#include "infer/likeliest.h"

namespace diffattn::infer {
namespace {

using torch::Tensor;

constexpr int64_t kLeastCapacity = 256;
/// Tokens for which a row gets pages beyond those that it has, if the cache may grow.
constexpr int64_t kTokensAhead = 256;

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
  int64_t new_pages = 0, longest = 0, slots = 0;
  for (const JoiningRow& row : rows) {
    const auto prompt = static_cast<int64_t>(row.prompt.size());
    const int64_t tokens = tokens_ahead(prompt, row.most_tokens);
    new_pages += cache_.pages_for(tokens);
    longest = std::max(longest, tokens);
    slots = std::max(slots, row.slot + 1);
  }
  reserve(new_pages, slots, longest);
  for (const JoiningRow& row : rows) {
    const auto tokens = static_cast<int64_t>(row.prompt.size());
    Slot& slot = slots_[row.slot] = {
        .prompt = row.prompt, .tokens = tokens, .most_tokens = row.most_tokens, .rule = row.rule};
    slot.pages = cache_.take(cache_.pages_for(tokens_ahead(tokens, row.most_tokens)));
    joining_.push_back(row.slot);
  }
}

std::vector<int64_t> StepEngine::prefill(int64_t budget) {
  if (joining_.empty()) return {};
  const StepStream::Scope scope(stream_);
  std::vector<int64_t> ready;
  do {
    infer::prefill(*model_, step_, cache_, next_chunks(budget));
    std::erase_if(joining_, [&](int64_t number) {
      Slot& slot = slots_[number];
      slot.cached = slot.planned;
      if (!slot.started || slot.cached < slot.prefill_tokens()) return false;
      write_state(number, slot);
      ready.push_back(number);
      return true;
    });
  } while (budget == 0 && !joining_.empty());  // rows that wait for a common prefix come next
  return ready;
}

/// Returns the parts of prompts that come next, oldest rows first: about `budget` tokens. While
/// others wait, a prompt gets at most half of them.
std::vector<PrefillRow> StepEngine::next_chunks(int64_t budget) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  const int64_t most = budget == 0 ? kAll : std::max<int64_t>(1, budget);
  const int64_t share = budget > 1 && joining_.size() > 1 ? budget / 2 : most;
  std::vector<PrefillRow> chunks;
  int64_t left = most;
  for (size_t place = 0; place < joining_.size(); ++place) {
    Slot& slot = slots_[joining_[place]];
    if (!slot.started && waits_for_prefix(place)) continue;
    if (!slot.started) take_prefix(slot, shared_prefix(slot.prompt));
    slot.started = true;
    const int64_t count = std::min(slot.prefill_tokens() - slot.cached, share);
    if (count > left) break;
    chunks.push_back({.prompt = &slot.prompt,
                      .pages = slot.pages,
                      .cached = slot.cached,
                      .end = slot.cached + count});
    slot.planned = slot.cached + count;
    left -= count;
  }
  return chunks;
}

/// True if an older row still computes more of the prompt than any row has in the cache.
bool StepEngine::waits_for_prefix(size_t place) const {
  if (!options_.share_prefixes()) return false;
  const std::vector<int64_t>& prompt = slots_.at(joining_[place]).prompt;
  int64_t known = 0, coming = 0;
  for (const auto& [number, other] : slots_) {
    if (!other.started) continue;
    known = std::max(known, std::min(other.cached, common_prefix(other.prompt, prompt)));
  }
  for (size_t i = 0; i < place; ++i) {
    const Slot& other = slots_.at(joining_[i]);
    coming =
        std::max(coming, std::min(other.prefill_tokens(), common_prefix(other.prompt, prompt)));
  }
  return coming > known && coming >= cache_.page_size();
}

void StepEngine::leave(int64_t number) {
  const StepStream::Scope scope(stream_);
  const auto slot = slots_.find(number);
  if (slot == slots_.end()) return;  // it failed to join
  std::erase(joining_, number);
  cache_.give_back(slot->second.pages);  // later work on the stream may write to them
  slots_.erase(slot);
  buffers_->steps.select(0, number).fill_(-1);
  buffers_->positions.select(0, number).zero_();
  buffers_->lengths.select(0, number).fill_(1);
  buffers_->table.select(0, number).zero_();
}

void StepEngine::launch(int64_t slots, int64_t longest) {
  const StepStream::Scope scope(stream_);
  grow(slots);
  const CapturedStep& step = captured(power_of_two_from(slots), longest);
  step_.kernels().launch(step.work, stream_.handle());
  stream_.mark();
}

token::Chosen StepEngine::chosen(int64_t slot, int64_t step) const {
  const auto* all = static_cast<const token::Chosen*>(buffers_->chosen.const_data_ptr());
  return all[slot * token::Sampling::kRing + step % token::Sampling::kRing];
}

std::vector<Alternative> StepEngine::likeliest(int64_t slot, int64_t count) const {
  const StepStream::Scope scope(stream_);
  return likeliest_tokens(buffers_->logits.select(0, slot), count);
}

Batcher::Load StepEngine::load() const {
  Batcher::Load load = load_;
  load.used_pages = cache_.used_pages();
  load.pages = std::max<int64_t>(0, cache_.pages() - 1);
  load.cache_bytes = cache_.bytes();
  return load;
}

/// Returns the tokens for which a row of `tokens` tokens has pages: all that it may need if the
/// cache is bounded, so that it never waits for others.
int64_t StepEngine::tokens_ahead(int64_t tokens, int64_t most_tokens) const {
  return options_.cache_tokens() > 0 ? most_tokens : std::min(most_tokens, tokens + kTokensAhead);
}

/// Gives pages to the rows that need them in the next step.
void StepEngine::grow(int64_t slots) {
  int64_t new_pages = 0, longest = 0;
  std::vector<std::pair<int64_t, int64_t>> growing;  // slot, pages
  for (auto& [number, slot] : slots_) {
    if (number >= slots || std::ranges::find(joining_, number) != joining_.end()) continue;
    const auto held = static_cast<int64_t>(slot.pages.size());
    const int64_t tokens = tokens_ahead(slot.tokens, slot.most_tokens);
    if (cache_.pages_for(std::min(slot.tokens, slot.most_tokens)) > held) {
      growing.emplace_back(number, cache_.pages_for(tokens) - held);
      new_pages += growing.back().second;
      longest = std::max(longest, tokens);
    }
    ++slot.tokens;
  }
  if (growing.empty()) return;
  reserve(new_pages, slots, longest);
  for (const auto& [number, pages] : growing) {
    Slot& slot = slots_[number];
    const auto own = cache_.take(pages);
    slot.pages.insert(slot.pages.end(), own.begin(), own.end());
    set_row(buffers_->table, number, slot.pages);
  }
}

/// Makes room for more pages, for slots [0, slots), and for sequences of `tokens` tokens. What
/// captured steps refer to may move, and then they are dropped.
void StepEngine::reserve(int64_t new_pages, int64_t slots, int64_t tokens) {
  const int64_t pages = cache_.used_pages() + new_pages, rows = power_of_two_from(slots);
  const int64_t capacity = capacity_for(tokens + depth());
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
  if (!options_.share_prefixes()) return {};
  const auto wanted = static_cast<int64_t>(prompt.size()) - 1;
  const Slot* best = nullptr;
  int64_t most = 0;
  for (const auto& [number, other] : slots_) {
    if (!other.started) continue;
    const int64_t cached = std::min(other.cached, common_prefix(other.prompt, prompt));
    if (cached > most) most = cached, best = &other;
  }
  const int64_t size = cache_.page_size(), whole = std::min(most, wanted) / size;
  SharedPrefix prefix;
  prefix.tokens = most >= wanted ? wanted : whole * size;
  if (prefix.tokens == 0) return prefix;
  prefix.pages.assign(best->pages.begin(), best->pages.begin() + whole);
  if (prefix.tokens % size > 0) prefix.copied_page = best->pages[static_cast<size_t>(whole)];
  return prefix;
}

/// Puts the pages of a common prefix in the place of the row's own.
void StepEngine::take_prefix(Slot& slot, const SharedPrefix& prefix) {
  const auto shared = static_cast<ptrdiff_t>(prefix.pages.size());
  cache_.share(prefix.pages);
  cache_.give_back({slot.pages.begin(), slot.pages.begin() + shared});
  std::ranges::copy(prefix.pages, slot.pages.begin());
  if (prefix.copied_page) {
    cache_.copy(*prefix.copied_page, slot.pages[static_cast<size_t>(shared)]);
  }
  slot.cached = slot.planned = prefix.tokens;
}

void StepEngine::write_state(int64_t number, const Slot& slot) {
  StepBuffers& b = *buffers_;
  const auto cached = static_cast<int32_t>(slot.prompt.size()) - 1;
  const auto set = [&](const Tensor& to, int32_t value) { to.select(0, number).fill_(value); };
  set(b.tokens, static_cast<int32_t>(slot.prompt.back()));
  set(b.positions, cached);
  set(b.lengths, cached + 1);
  set(b.steps, 0);
  b.table.select(0, number).zero_();
  set_row(b.table, number, slot.pages);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&slot.rule);
  set_row(b.rules, number, std::vector<uint8_t>(bytes, bytes + sizeof(slot.rule)));
  const Tensor counts = b.counts.select(0, number).zero_();
  if (slot.rule.repetition == 1.0f) return;
  const Tensor ids = torch::tensor(slot.prompt, torch::kLong).to(stream_.device());
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
