// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "diffattn/io/file.h"

namespace diffattn::io {

inline constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

/// The lines of a file of any size, without their ends (LF or CR LF).
class LineReader {
 public:
  explicit LineReader(const std::string& path, std::size_t max_line_bytes = kMaxLineBytes);

  /// Replaces line by the next one; false at the end of the file. A line longer than allowed throws
  /// Error with its number; the call after that gives the line behind it.
  bool next(std::string& line);
  /// Number of the line that next() gave last, counted from 1.
  std::uint64_t number() const noexcept { return number_; }
  const std::string& name() const noexcept { return file_.name(); }
  /// Bytes of the file up to the end of that line, and in all.
  std::uint64_t position() const noexcept { return position_; }
  std::uint64_t size() const noexcept { return file_.size(); }

 private:
  bool fill();

  File file_;
  std::size_t max_line_bytes_;
  std::string buffer_;
  std::size_t at_ = 0;  // in buffer_
  std::uint64_t read_to_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t number_ = 0;
};

/// What the lines of a JSONL file hold; further keys are ignored.
enum class RecordKind {
  kText,      // {"text": string}
  kLabelled,  // {"text": string, "label": string or integer}
  kSummary,   // {"document": string, "summary": string}
};

struct Record {
  std::string text;   // or the document
  std::string label;  // an integer as its digits
  std::string summary;
};

/// Parses one line; file and number are for messages, which read
/// `data.jsonl: line 7: key 'text': expected a string, got number 3`.
Record parse_record(std::string_view line, RecordKind kind, const std::string& file,
                    std::uint64_t number);

/// The records of a JSONL file. Empty lines are passed over.
class JsonlReader {
 public:
  /// With skip_bad, lines that are not records are counted instead of thrown.
  JsonlReader(const std::string& path, RecordKind kind, bool skip_bad = false);

  bool next(Record& record);
  std::uint64_t line() const noexcept { return lines_.number(); }
  std::uint64_t skipped() const noexcept { return skipped_; }
  /// What was wrong with the first line skipped.
  const std::string& first_fault() const noexcept { return first_fault_; }
  const LineReader& lines() const noexcept { return lines_; }

 private:
  LineReader lines_;
  RecordKind kind_;
  bool skip_bad_;
  std::uint64_t skipped_ = 0;
  std::string first_fault_;
  std::string text_;
};

}  // namespace diffattn::io
