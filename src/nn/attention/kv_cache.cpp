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
  int64_t longest = 0;
  for (const Slot& slot : slots_) longest = std::max(longest, slot.length);
  return longest;
}

void KvCache::reserve(Slot& slot, const torch::Tensor& rows) const {
  const int64_t needed = slot.length + rows.size(1);
  if (slot.buffer.defined()) {
    const bool fits = slot.buffer.dim() == rows.dim() && slot.buffer.size(0) == rows.size(0) &&
                      slot.buffer.sizes().slice(2) == rows.sizes().slice(2);
    if (!fits) {
      throw_argument_error("cache", "rows like those it holds, " + text(slot.buffer.sizes()),
                           "shape " + text(rows.sizes()));
    }
    if (slot.buffer.scalar_type() != rows.scalar_type() || slot.buffer.device() != rows.device()) {
      throw_argument_error("cache", "rows of type and device like those it holds",
                           text(rows.options()));
    }
    if (needed <= slot.buffer.size(1)) return;
  }
  const int64_t held = slot.buffer.defined() ? slot.buffer.size(1) : 0;
  const int64_t wanted = std::max(needed, 2 * held);
  auto sizes = rows.sizes().vec();
  sizes[1] = (wanted + chunk_ - 1) / chunk_ * chunk_;
  const torch::Tensor grown = torch::empty(sizes, rows.options());
  if (slot.length > 0) {
    grown.narrow(1, 0, slot.length).copy_(slot.buffer.narrow(1, 0, slot.length));
  }
  slot.buffer = grown;
}

torch::Tensor KvCache::append(size_t slot, const torch::Tensor& rows) {
  if (rows.dim() < 2) {
    throw_argument_error("cache", "rows [B, n, ...]", "shape " + text(rows.sizes()));
  }
  if (at::GradMode::is_enabled() && rows.requires_grad()) {
    throw_argument_error("cache", "no gradients (torch::NoGradGuard): it is for inference",
                         "rows that require them");
  }
  const torch::NoGradGuard no_grad;
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  Slot& s = slots_[slot];
  reserve(s, rows);
  s.buffer.narrow(1, s.length, rows.size(1)).copy_(rows);
  s.length += rows.size(1);
  return filled(slot);
}

torch::Tensor KvCache::filled(size_t slot) const {
  if (slot >= slots_.size() || !slots_[slot].buffer.defined()) return {};
  return slots_[slot].buffer.narrow(1, 0, slots_[slot].length);
}

void KvCache::rewind(int64_t length) {
  if (length < 0 || length > this->length()) {
    throw_argument_error("length", "0 to " + std::to_string(this->length()) + ", what is held",
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
}

KvCache KvCache::clone() const {
  KvCache copy(chunk_);
  for (const Slot& slot : slots_) {
    copy.slots_.push_back({slot.buffer.defined() ? slot.buffer.clone() : slot.buffer, slot.length});
  }
  return copy;
}

}  // namespace diffattn::nn
