// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/kv_cache.h"

#include <algorithm>
#include <sstream>

#include "diffattn/ops.h"

namespace diffattn::nn {
namespace {

template <class T>
std::string text(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

KvCache::KvCache(int64_t chunk) : chunk_(chunk) {
  if (chunk < 1) throw_argument_error("chunk", "at least 1 row", std::to_string(chunk));
}

int64_t KvCache::length() const {
  int64_t longest = tokens_;
  for (const Slot& slot : slots_) {
    if (slot.buffer.defined()) longest = std::max(longest, dropped_ + slot.length - slot.first);
  }
  return longest;
}

void KvCache::reserve(Slot& slot, torch::IntArrayRef sizes,
                      const torch::TensorOptions& options) const {
  const int64_t needed = slot.length + sizes[1];
  if (slot.buffer.defined()) {
    const torch::IntArrayRef held = slot.buffer.sizes();
    if (held.size() != sizes.size() || held[0] != sizes[0] || held.slice(2) != sizes.slice(2)) {
      throw_argument_error("cache", "rows like those in the cache, " + text(held),
                           "shape " + text(sizes));
    }
    if (slot.buffer.dtype() != options.dtype() || slot.buffer.device() != options.device()) {
      throw_argument_error("cache", "rows with the type and device of those in the cache",
                           text(options));
    }
    if (needed <= held[1]) return;
  }
  // Dropped rows make room: a slot whose window moves on keeps its size.
  const int64_t rows = slot.length - slot.first;
  const int64_t wanted = slot.first > 0 ? 2 * (rows + sizes[1]) : std::max(needed, 2 * rows);
  auto grown_sizes = sizes.vec();
  grown_sizes[1] = (wanted + chunk_ - 1) / chunk_ * chunk_;
  const torch::Tensor grown = torch::empty(grown_sizes, options);
  if (rows > 0) grown.narrow(1, 0, rows).copy_(slot.buffer.narrow(1, slot.first, rows));
  slot = {grown, 0, rows};
}

KvCache::Room KvCache::extend(size_t slot, torch::IntArrayRef sizes,
                              const torch::TensorOptions& options) {
  if (sizes.size() < 2) throw_argument_error("cache", "rows [B, n, ...]", "shape " + text(sizes));
  const torch::NoGradGuard no_grad;
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  Slot& s = slots_[slot];
  reserve(s, sizes, options);
  const int64_t begin = s.length;
  s.length += sizes[1];
  return {s.buffer, begin};
}

torch::Tensor KvCache::append(size_t slot, const torch::Tensor& rows) {
  if (at::GradMode::is_enabled() && rows.requires_grad()) {
    throw_argument_error("cache",
                         "rows without gradients (torch::NoGradGuard), since it is for inference",
                         "rows that require gradients");
  }
  const torch::NoGradGuard no_grad;
  const Room room = extend(slot, rows.sizes(), rows.options());
  room.buffer.narrow(1, room.begin, rows.size(1)).copy_(rows);
  return filled(slot);
}

torch::Tensor KvCache::filled(size_t slot) const {
  if (slot >= slots_.size() || !slots_[slot].buffer.defined()) return {};
  const Slot& s = slots_[slot];
  return s.buffer.narrow(1, s.first, s.length - s.first);
}

void KvCache::keep_newest(int64_t count) {
  const int64_t dropped = std::max(dropped_, length() - count);
  for (Slot& slot : slots_) slot.first += dropped - dropped_;
  dropped_ = dropped;
}

torch::Tensor KvCache::state(size_t index) const {
  return index < states_.size() ? states_[index] : torch::Tensor();
}

void KvCache::set_state(size_t index, const torch::Tensor& state) {
  if (at::GradMode::is_enabled() && state.requires_grad()) {
    throw_argument_error(
        "cache", "a state without gradients (torch::NoGradGuard), since it is for inference",
        "a state that requires gradients");
  }
  if (index >= states_.size()) states_.resize(index + 1);
  states_[index] = state;
}

void KvCache::clear() {
  slots_.clear();
  states_.clear();
  dropped_ = tokens_ = 0;
}

void KvCache::rewind(int64_t length) {
  if (length < 0 || length > this->length()) {
    throw_argument_error("length", "0 to the current length " + std::to_string(this->length()),
                         std::to_string(length));
  }
  if (length == this->length()) return;
  if (length == 0) {
    states_.clear();
    dropped_ = tokens_ = 0;
    for (Slot& slot : slots_) slot.first = slot.length = 0;
    return;
  }
  if (!states_.empty()) {
    throw_argument_error("length", "0 or the current length, since states cannot go back",
                         std::to_string(length));
  }
  if (dropped_ > 0) {
    throw_argument_error("length", "0 or the current length, since older rows were dropped",
                         std::to_string(length));
  }
  for (Slot& slot : slots_) slot.length = std::min(slot.length, length);
}

void KvCache::select_rows(const torch::Tensor& rows) {
  const torch::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    if (!slot.buffer.defined()) continue;
    slot.buffer = slot.buffer.index_select(0, rows.to(slot.buffer.device(), torch::kLong));
  }
  for (torch::Tensor& state : states_) {
    if (state.defined()) state = state.index_select(0, rows.to(state.device(), torch::kLong));
  }
}

KvCache KvCache::clone() const {
  KvCache copy(chunk_);
  for (const Slot& slot : slots_) {
    copy.slots_.push_back(
        {slot.buffer.defined() ? slot.buffer.clone() : slot.buffer, slot.first, slot.length});
  }
  for (const torch::Tensor& state : states_) {
    copy.states_.push_back(state.defined() ? state.clone() : state);
  }
  copy.dropped_ = dropped_;
  copy.tokens_ = tokens_;
  return copy;
}

}  // namespace diffattn::nn
