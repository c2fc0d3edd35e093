// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/safetensors.h"
#include "io/checked.h"
#include "io/safetensors/header_events.h"
#include "io/safetensors/rules.h"

namespace diffattn::io {
namespace {

[[noreturn]] void fail_entry(const std::string& file, const Entry& entry,
                             const std::string& message) {
  throw Error(file, kLengthBytes + entry.position,
              "tensor " + in_quotes(entry.info.name) + ": " + message);
}

// Sorting finds duplicates in O(n log n) for any names; an attacker could choose names that all
// collide in a hash table.
std::vector<uint32_t> sorted_by_name(const std::vector<Entry>& entries, const std::string& file) {
  std::vector<uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int sign = entries[a].info.name.compare(entries[b].info.name);
    return sign != 0 ? sign < 0 : entries[a].position < entries[b].position;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (entries[order[i - 1]].info.name == entries[order[i]].info.name) {
      fail_entry(file, entries[order[i]], "expected unique names, got this one twice");
    }
  }
  return order;
}

// Throws Error if the tensors leave gaps, overlap or do not fill the data part exactly.
void check_layout(const std::vector<Entry>& entries, uint64_t data_size, const std::string& file) {
  uint64_t next = 0;
  for (const Entry& entry : entries) {
    if (entry.info.begin != next) {
      fail_entry(file, entry,
                 "expected its data to begin at " + std::to_string(next) +
                     ", where the data before it ends, got " + std::to_string(entry.info.begin));
    }
    if (entry.info.end > data_size) {
      fail_entry(file, entry,
                 "expected its data to end within the " + std::to_string(data_size) +
                     " bytes of data in the file, got " + std::to_string(entry.info.end));
    }
    next = entry.info.end;
  }
  if (next != data_size) {
    throw Error(file, "expected the tensors to fill the " + std::to_string(data_size) +
                          " bytes of data in the file, got " + std::to_string(next));
  }
}

}  // namespace

uint64_t SafetensorsHeader::parse_length(std::span<const std::byte> first, uint64_t file_size,
                                         const std::string& file) {
  if (first.size() < kLengthBytes || file_size < kLengthBytes) {
    throw Error(file, 0,
                "expected a header length of 8 bytes, got a file of " +
                    std::to_string(std::min<uint64_t>(first.size(), file_size)) + " bytes");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(first[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    throw Error(file, 0,
                "expected a header of at most " + std::to_string(kMaxHeaderBytes) +
                    " bytes, got a length of " + std::to_string(length));
  }
  const auto end = checked_add(kLengthBytes, length);
  if (!end || *end > file_size) {
    throw Error(file, 0,
                "expected a header within the file's " + std::to_string(file_size) +
                    " bytes, got a length of " + std::to_string(length));
  }
  return length;
}

SafetensorsHeader SafetensorsHeader::parse(std::span<const std::byte> head, uint64_t file_size,
                                           const std::string& file) {
  const uint64_t length = parse_length(head, file_size, file);
  const auto data_begin = checked_add(kLengthBytes, length);
  if (!data_begin || *data_begin > head.size()) {
    throw Error(file, head.size(),
                "expected " + std::to_string(length) + " bytes of header, got " +
                    std::to_string(head.size() - kLengthBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes,
                              static_cast<size_t>(length));
  HeaderEvents events(text, file);
  events.run();

  std::vector<Entry>& entries = events.entries;
  const auto lies_before = [](const Entry& a, const Entry& b) {
    if (a.info.begin != b.info.begin) return a.info.begin < b.info.begin;
    if (a.info.end != b.info.end) return a.info.end < b.info.end;  // empty tensors first
    return a.position < b.position;
  };
  // Most writers list tensors in the order of their data.
  if (!std::is_sorted(entries.begin(), entries.end(), lies_before)) {
    std::sort(entries.begin(), entries.end(), lies_before);
  }
  SafetensorsHeader header;
  header.by_name_ = sorted_by_name(entries, file);
  check_layout(entries, file_size - *data_begin, file);
  header.tensors_.reserve(entries.size());
  for (Entry& entry : entries) header.tensors_.push_back(std::move(entry.info));
  header.metadata_ = std::move(events.metadata);
  header.data_begin_ = *data_begin;
  return header;
}

const TensorInfo* SafetensorsHeader::find(std::string_view name) const noexcept {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  if (found == by_name_.end() || tensors_[*found].name != name) return nullptr;
  return &tensors_[*found];
}

}  // namespace diffattn::io
