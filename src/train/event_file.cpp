// SPDX-License-Identifier: Apache-2.0
//
// A record has four little-endian parts: length (8 bytes), masked CRC of the length (4), an Event
// (protocol buffer), masked CRC of the Event (4). We write these fields of an Event: 1 wall_time
// (double), 2 step (varint), 3 file_version (string),
// 5 summary { 1 value { 1 tag (string), 2 simple_value (float) } }.

#include "train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "diffattn/io/error.h"

namespace diffattn::train {
namespace {

static_assert(std::endian::native == std::endian::little, "records are copied from memory");

enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

std::string field(uint64_t number, WireType type, const std::string& payload) {
  std::string out = varint(number << 3 | type);
  if (type == kBytes) out += varint(payload.size());
  return out + payload;
}

/// Masks a CRC as the format requires, because a CRC over data that contains CRCs is weak.
uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

EventFile::EventFile(const std::string& folder) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  path_ = folder + "/events.out.tfevents." + std::to_string(static_cast<int64_t>(now())) + "." +
          host.data() + "." + std::to_string(getpid());
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw io::Error(path_, std::string("could not be created: ") + strerror(errno));
  record(field(1, kFixed64, raw(now())) + field(3, kBytes, "brain.Event:2"));
}

EventFile::~EventFile() { close(fd_); }

void EventFile::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, value] : values) {
    summary += field(1, kBytes,
                     field(1, kBytes, tag) + field(2, kFixed32, raw(static_cast<float>(value))));
  }
  record(field(1, kFixed64, raw(now())) + field(2, kVarint, varint(static_cast<uint64_t>(step))) +
         field(5, kBytes, summary));
}

void EventFile::record(const std::string& event) {
  const std::string length = raw(uint64_t{event.size()});
  const std::string bytes =
      length + raw(masked(crc32c(length))) + event + raw(masked(crc32c(event)));
  // A single write: the file ends inside a record only if the disk is full.
  const ssize_t written = write(fd_, bytes.data(), bytes.size());
  if (written != static_cast<ssize_t>(bytes.size())) {
    throw io::Error(path_, std::string("could not be written: ") +
                               (written < 0 ? strerror(errno) : "no space left"));
  }
}

}  // namespace diffattn::train
