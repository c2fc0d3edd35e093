// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/file.h"

namespace diffattn::io {

inline constexpr size_t kMaxLineBytes = size_t{64} << 20;

/// Reads the next bytes of a stream and returns their number; 0 at the end. Throws Error if the
/// read fails.
using ReadBytes = std::function<size_t(std::span<char> out)>;

/// Reads a file or a stream of any size line by line, without the line ends (LF or CR LF). It never
/// holds more than one line of at most max_line_bytes bytes and a buffer.
class LineReader {
 public:
  /// Reads a regular file.
  explicit LineReader(const std::string& path, size_t max_line_bytes = kMaxLineBytes);
  /// Reads a stream; `name` is used for messages.
  LineReader(std::string name, ReadBytes read, size_t max_line_bytes = kMaxLineBytes);

  /// Reads the next line; returns false at the end of the file. Throws Error for a line that is too
  /// long; the next call then continues with the following line.
  bool next(std::string& line);
  /// Number of the line that next() read last, counted from 1.
  uint64_t number() const noexcept { return number_; }
  const std::string& name() const noexcept { return name_; }
  /// Bytes from the start of the file to the end of the line that next() read last.
  uint64_t position() const noexcept { return position_; }
  /// Size of the file when it was opened; 0 for a stream.
  uint64_t size() const noexcept { return size_; }

 private:
  bool fill();

  std::string name_;
  ReadBytes read_;
  size_t max_line_bytes_;
  uint64_t size_ = 0;
  std::vector<char> buffer_;
  size_t at_ = 0;   // start of the next line in buffer_
  size_t end_ = 0;  // bytes of buffer_ that were read
  uint64_t position_ = 0;
  uint64_t number_ = 0;
};

/// The keys that each line of a JSONL file must have; readers ignore other keys.
enum class RecordKind {
  kText,      // {"text": string}
  kLabelled,  // {"text": string, "label": string or integer}
  kSummary,   // {"document": string, "summary": string}
};

struct Record {
  std::string text;   // value of "text" or "document"
  std::string label;  // an integer label as decimal digits
  std::string summary;
};

/// Parses one line. Throws Error; file and number are used for the message, which reads
/// `data.jsonl: line 7: key 'text': expected a string, got number 3`.
Record parse_record(std::string_view line, RecordKind kind, const std::string& file,
                    uint64_t number);

/// Reads the records of a JSONL file and skips empty lines.
class JsonlReader {
 public:
  /// If skip_bad is true, next() counts lines that are not records instead of throwing Error.
  JsonlReader(const std::string& path, RecordKind kind, bool skip_bad = false);

  bool next(Record& record);
  uint64_t line() const noexcept { return lines_.number(); }
  uint64_t skipped() const noexcept { return skipped_; }
  /// The error message of the first skipped line; empty if there is none.
  const std::string& first_fault() const noexcept { return first_fault_; }
  const LineReader& lines() const noexcept { return lines_; }

 private:
  LineReader lines_;
  RecordKind kind_;
  bool skip_bad_;
  uint64_t skipped_ = 0;
  std::string first_fault_;
  std::string text_;
};

}  // namespace diffattn::io
