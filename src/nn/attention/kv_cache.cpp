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
  const int64_t held = slot.buffer.defined() ? slot.buffer.size(1) : 0;
  const int64_t wanted = std::max(needed, 2 * held);
  auto grown_sizes = sizes.vec();
  grown_sizes[1] = (wanted + chunk_ - 1) / chunk_ * chunk_;
  const torch::Tensor grown = torch::empty(grown_sizes, options);
  if (slot.length > 0) {
    grown.narrow(1, 0, slot.length).copy_(slot.buffer.narrow(1, 0, slot.length));
  }
  slot.buffer = grown;
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
  return slots_[slot].buffer.narrow(1, 0, slots_[slot].length);
}

void KvCache::rewind(int64_t length) {
  if (length < 0 || length > this->length()) {
    throw_argument_error("length", "0 to the current length " + std::to_string(this->length()),
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
