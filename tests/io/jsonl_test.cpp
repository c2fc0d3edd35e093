// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/jsonl.h"

#include <algorithm>
#include <random>

#include "io/text.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::error_of;
using testing::holds;
using testing::TempFolder;

std::vector<std::string> lines_of(const std::string& path) {
  LineReader reader(path);
  std::vector<std::string> lines;
  for (std::string line; reader.next(line);) {
    lines.push_back(line);
    EXPECT_EQ(reader.number(), lines.size());
  }
  EXPECT_EQ(reader.position(), reader.size());
  return lines;
}

TEST(LineReader, EndsOfLinesAndOfTheFile) {
  const TempFolder folder;
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of(folder.put("a", "")), Lines{});
  EXPECT_EQ(lines_of(folder.put("a", "x")), Lines{"x"});
  EXPECT_EQ(lines_of(folder.put("a", "x\n")), Lines{"x"});
  EXPECT_EQ(lines_of(folder.put("a", "x\r\ny\r\n\n")), (Lines{"x", "y", ""}));
  EXPECT_EQ(lines_of(folder.put("a", "\n")), Lines{""});
}

TEST(LineReader, LinesOfAnyLengthAcrossBuffers) {
  const TempFolder folder;
  std::mt19937 random(1);
  std::vector<std::string> expected;
  std::string text;
  for (int i = 0; i < 300; ++i) {
    expected.emplace_back(random() % (i % 50 == 0 ? 700'000 : 3000),
                          'a' + static_cast<char>(i % 26));
    text += expected.back() + "\n";
  }
  EXPECT_EQ(lines_of(folder.put("a", text)), expected);
}

TEST(LineReader, ALineTooLongIsAnErrorAndTheNextOneIsRead) {
  const TempFolder folder;
  LineReader reader(folder.put("a", "12345\n1234\n123456\nend"), 4);
  std::string line;
  EXPECT_TRUE(holds(error_of([&] { reader.next(line); }), "line 1: expected at most 4 bytes"));
  EXPECT_TRUE(reader.next(line));
  EXPECT_EQ(line, "1234");
  EXPECT_TRUE(holds(error_of([&] { reader.next(line); }), "line 3"));
  EXPECT_TRUE(reader.next(line));
  EXPECT_EQ(line, "end");
  EXPECT_FALSE(reader.next(line));
}

/// Returns a source that gives the text in pieces of `size` bytes, and fails after it.
ReadBytes failing_source(std::string text, size_t size) {
  return [text = std::move(text), size, at = size_t{0}](std::span<char> out) mutable {
    if (at == text.size()) throw Error("pipe", "read failed");
    const size_t bytes = text.copy(out.data(), std::min(size, out.size()), at);
    at += bytes;
    return bytes;
  };
}

TEST(LineReader, AFailedReadOfAStreamIsAnErrorAndNotTheEnd) {
  for (const size_t size : {size_t{1}, size_t{3}, size_t{100}}) {
    LineReader reader("pipe", failing_source("ab\r\ncdef\n", size), 4);
    std::string line;
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line, "ab");
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line, "cdef");
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(error_of([&] { reader.next(line); }), "pipe: read failed");
  }
}

TEST(LineReader, AnEndlessLineOfAStreamIsNotHeldInMemory) {
  size_t pieces = 0;
  LineReader reader(
      "pipe",
      [&](std::span<char> out) {
        if (++pieces > 4096) return size_t{0};
        std::ranges::fill(out, 'a');
        return out.size();
      },
      1000);
  std::string line;
  EXPECT_TRUE(holds(error_of([&] { reader.next(line); }), "line 1: expected at most 1000 bytes"));
  EXPECT_EQ(pieces, 4097u);  // 1 GiB
  EXPECT_LT(line.capacity(), 4096u);
  EXPECT_FALSE(reader.next(line));
}

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("model", "model"), 0u);
  EXPECT_EQ(edit_distance("modle", "model"), 1u);
  EXPECT_EQ(edit_distance("mode", "model"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Jsonl, RecordsOfEachKind) {
  const Record text = parse_record(R"({"text": "a\n", "x": [1]})", RecordKind::kText, "f", 1);
  EXPECT_EQ(text.text, "a\n");
  EXPECT_EQ(parse_record(R"({"text": "", "label": -3})", RecordKind::kLabelled, "f", 1).label,
            "-3");
  EXPECT_EQ(parse_record(R"({"text": "", "label": "b"})", RecordKind::kLabelled, "f", 1).label,
            "b");
  const Record pair =
      parse_record(R"({"document": "d", "summary": "s"})", RecordKind::kSummary, "f", 1);
  EXPECT_EQ(pair.text + pair.summary, "ds");
}

TEST(Jsonl, FaultsNameFileLineAndKey) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "key 'text'"},
      {"[]", "expected an object"},
      {"{\"text\": 3, \"label\": 1}", "key 'text': expected a string, got number 3"},
      {"{\"text\": \"a\"}", "key 'label'"},
      {"{\"text\": \"a\", \"label\": 0.5}", "key 'label'"},
      {"{\"text\": \"a\", \"label\": []}", "key 'label': expected a string or an integer"},
      {"{\"text\": \"a\", \"label\": null}", "key 'label'"},
      {"{\"text\": \"a\", \"label\": 1", "byte 24"},
      {"{\"text\": \"\xff\", \"label\": 1}", "byte"},
      {"{\"text\": \"a\", \"text\": \"b\", \"label\": 1}", "a second 'text'"},
      {"text", "byte 1"},
  };
  for (const auto& [line, fragment] : cases) {
    const std::string error =
        error_of([&] { parse_record(line, RecordKind::kLabelled, "d.jsonl", 7); });
    EXPECT_TRUE(error.starts_with("d.jsonl: line 7: ")) << error;
    EXPECT_TRUE(holds(error, fragment)) << error;
  }
}

TEST(Jsonl, BadLinesAreErrorsOrCounted) {
  const TempFolder folder;
  const std::string path =
      folder.put("d.jsonl", "{\"text\": \"a\"}\n\n  \nbad\n{\"text\": \"b\"}\r\n{\"text\": 1}");
  JsonlReader strict(path, RecordKind::kText);
  Record record;
  EXPECT_TRUE(strict.next(record));
  EXPECT_TRUE(holds(error_of([&] { strict.next(record); }), "d.jsonl: line 4: byte"));
  JsonlReader lenient(path, RecordKind::kText, true);
  std::string texts;
  while (lenient.next(record)) texts += record.text;
  EXPECT_EQ(texts, "ab");
  EXPECT_EQ(lenient.skipped(), 2u);
  EXPECT_TRUE(holds(lenient.first_fault(), "line 4"));
}

}  // namespace
}  // namespace diffattn::io
