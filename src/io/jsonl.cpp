// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/jsonl.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/json.h"

namespace diffattn::io {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

std::string at_line(uint64_t number, const std::string& message) {
  return "line " + std::to_string(number) + ": " + message;
}

std::string label_of(const JsonValue& value) {
  if (value.is_string()) return value.to_string(kMaxLineBytes);
  if (!value.is_number()) value.fail("a string or an integer");
  return std::to_string(value.to_int());
}

Record record_of(const JsonValue& root, RecordKind kind) {
  Record record;
  if (kind == RecordKind::kSummary) {
    record.text = root.at("document").to_string(kMaxLineBytes);
    record.summary = root.at("summary").to_string(kMaxLineBytes);
    return record;
  }
  record.text = root.at("text").to_string(kMaxLineBytes);
  if (kind == RecordKind::kLabelled) record.label = label_of(root.at("label"));
  return record;
}

}  // namespace

LineReader::LineReader(const std::string& path, size_t max_line_bytes)
    : name_(path), max_line_bytes_(max_line_bytes) {
  const auto file = std::make_shared<const File>(File::open(path));
  size_ = file->size();
  buffer_.resize(static_cast<size_t>(std::clamp<uint64_t>(size_, 1, kBufferBytes)));
  read_ = [file, at = uint64_t{0}](std::span<char> out) mutable {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(out.size(), file->size() - at));
    file->read(at, std::as_writable_bytes(out.first(bytes)));
    at += bytes;
    return bytes;
  };
}

LineReader::LineReader(std::string name, ReadBytes read, size_t max_line_bytes)
    : name_(std::move(name)),
      read_(std::move(read)),
      max_line_bytes_(max_line_bytes),
      buffer_(kBufferBytes) {}

bool LineReader::fill() {
  at_ = end_ = 0;  // if read_ throws, a later call reads again instead of returning old bytes
  end_ = read_(buffer_);
  return end_ > 0;
}

bool LineReader::next(std::string& line) {
  line.clear();
  if (at_ == end_ && !fill()) return false;
  ++number_;
  bool too_long = false, more = true;
  while (more && (at_ < end_ || fill())) {
    const std::string_view rest(buffer_.data() + at_, end_ - at_);
    const size_t size = std::min(rest.find('\n'), rest.size());
    too_long = too_long || line.size() + size > max_line_bytes_;
    if (!too_long) line.append(rest.substr(0, size));
    more = size == rest.size();
    at_ += size + (more ? 0 : 1);
    position_ += size + (more ? 0 : 1);
  }
  if (too_long) {
    line.clear();
    throw Error(name(), at_line(number_, "expected at most " + std::to_string(max_line_bytes_) +
                                             " bytes, got more"));
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return true;
}

Record parse_record(std::string_view line, RecordKind kind, const std::string& file,
                    uint64_t number) {
  try {
    const nlohmann::json document = parse_json(line, file);
    return record_of(JsonValue(document, file), kind);
  } catch (const Error& error) {
    const std::string byte =
        error.offset() ? "byte " + std::to_string(*error.offset()) + ": " : std::string();
    throw Error(file, at_line(number, byte + error.message()));
  }
}

JsonlReader::JsonlReader(const std::string& path, RecordKind kind, bool skip_bad)
    : lines_(path), kind_(kind), skip_bad_(skip_bad) {}

bool JsonlReader::next(Record& record) {
  for (;;) {
    try {
      if (!lines_.next(text_)) return false;
      if (text_.find_first_not_of(" \t") == std::string::npos) continue;
      record = parse_record(text_, kind_, lines_.name(), lines_.number());
      return true;
    } catch (const Error& error) {
      // Only errors that name a line are bad records; a failed read would fail again forever.
      if (!skip_bad_ || !error.message().starts_with("line ")) throw;
      if (skipped_++ == 0) first_fault_ = error.what();
    }
  }
}

}  // namespace diffattn::io
