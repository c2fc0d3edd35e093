// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <span>

#include "diffattn/data/corpus.h"
#include "diffattn/io/error.h"
#include "io/text.h"

namespace diffattn::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr uint64_t kBytesPerReport = uint64_t{4} << 20;

/// Reads text sources and passes tokens to a sink: tokens(span), then end_document().
template <typename Sink>
class CorpusReader {
 public:
  CorpusReader(const io::Tokenizer& tokenizer, const ReadOptions& options, Sink& sink)
      : tokenizer_(tokenizer), options_(options), sink_(sink) {}

  ReadReport run(const std::string& path) {
    const std::vector<std::string> files = text_files(path, &report_.skipped_files);
    for (const std::string& file : files) report_.total_bytes += fs::file_size(file);
    for (const std::string& file : files) {
      if (file.ends_with(".jsonl")) {
        read_records(file);
      } else {
        read_text(file);
      }
      ++report_.files;
      if (options_.progress) options_.progress(report_);
    }
    if (text_tokens_ == 0) {
      const std::string files =
          report_.files == 1 ? "" : " in " + std::to_string(report_.files) + " files";
      const std::string bad =
          report_.skipped == 0 ? "" : "; bad lines: " + std::to_string(report_.skipped);
      throw io::Error(path, "expected text, got none" + files + bad);
    }
    return report_;
  }

 private:
  void put(std::string_view text) {
    ids_.clear();
    tokenizer_.encode(text, {.add_special_tokens = false}, ids_);
    put_ids(ids_);
    text_tokens_ += ids_.size();
  }

  void put_ids(std::span<const TokenId> ids) {
    sink_.tokens(ids);
    report_.tokens += ids.size();
  }

  void begin_document() { put_ids(tokenizer_.prefix()); }

  void end_document() {
    const auto suffix = tokenizer_.suffix();
    put_ids(suffix);
    if (const auto end = tokenizer_.end_of_text(); end && options_.end_of_text && suffix.empty()) {
      put_ids(std::span(&*end, 1));
    }
    sink_.end_document();
    ++report_.documents;
  }

  void read_text(const std::string& file) {
    io::TextChunks chunks(file, kChunkBytes);
    const uint64_t before = report_.bytes;
    std::string chunk;
    bool any = false;
    while (chunks.next(chunk)) {
      if (!any) begin_document();
      any = true;
      put(chunk);
      report_.bytes = before + chunks.position();
      report_progress();
    }
    if (any) end_document();
  }

  void read_records(const std::string& file) {
    io::JsonlReader reader(file, io::RecordKind::kText, options_.skip_bad);
    const uint64_t before = report_.bytes;
    for (io::Record record; reader.next(record);) {
      begin_document();
      put(record.text);
      end_document();
      report_.bytes = before + reader.lines().position();
      report_progress();
    }
    if (report_.first_fault.empty()) report_.first_fault = reader.first_fault();
    report_.skipped += reader.skipped();
    report_.bytes = before + reader.lines().size();
  }

  void report_progress() {
    if (!options_.progress || report_.bytes < next_report_) return;
    next_report_ = report_.bytes + kBytesPerReport;
    options_.progress(report_);
  }

  const io::Tokenizer& tokenizer_;
  const ReadOptions& options_;
  Sink& sink_;
  ReadReport report_;
  std::vector<TokenId> ids_;
  uint64_t text_tokens_ = 0;  // without the tokens that mark begin and end of a document
  uint64_t next_report_ = kBytesPerReport;
};

struct MemorySink {
  void tokens(std::span<const TokenId> ids) { all.insert(all.end(), ids.begin(), ids.end()); }
  void end_document() {
    const uint64_t begin = documents.empty() ? 0 : documents.back().end;
    if (all.size() > begin) documents.push_back({begin, all.size()});
  }
  std::vector<TokenId> all;
  std::vector<Document> documents;
};

struct FileSink {
  void tokens(std::span<const TokenId> ids) { writer.append(ids); }
  void end_document() { writer.end_document(); }
  io::TokenFileWriter writer;
};

/// True for a NUL byte in the first 4096 bytes, as in images, archives and compiled code.
bool is_binary(const std::string& path) {
  constexpr uint64_t kFront = 4096;
  const io::File file = io::File::open(path);
  std::string front(std::min(file.size(), kFront), '\0');
  file.read(0, std::as_writable_bytes(std::span(front)));
  return front.find('\0') != std::string::npos;
}

void add_folder(const fs::path& folder, std::vector<std::string>& files,
                std::vector<std::string>& skipped) {
  std::error_code failed;
  auto entry = fs::recursive_directory_iterator(folder, failed);
  const auto check = [&] {
    if (failed) {
      throw io::Error(folder.string(), "expected a readable folder, got " + failed.message());
    }
  };
  check();
  while (entry != fs::recursive_directory_iterator()) {
    const bool hidden = entry->path().filename().native().starts_with('.');
    if (hidden) {
      entry.disable_recursion_pending();
    } else if (std::error_code ignored; entry->is_regular_file(ignored)) {
      (is_binary(entry->path()) ? skipped : files).push_back(entry->path());
    }
    entry.increment(failed);
    check();
  }
  std::sort(files.begin(), files.end());
  std::sort(skipped.begin(), skipped.end());
}

void check_labels(const Corpus& corpus, const std::string& path) {
  if (corpus.has_labels()) return;
  throw io::Error(path,
                  "expected a document of at least 2 tokens, because a label is the next "
                  "token, got only shorter ones");
}

}  // namespace

std::vector<std::string> text_files(const std::string& path, std::vector<std::string>* skipped) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return {io::File::open(path).name()};
  std::vector<std::string> files, others;
  add_folder(path, files, others);
  if (skipped != nullptr) *skipped = std::move(others);
  if (files.empty()) throw io::Error(path, "expected text files in the folder, got none");
  return files;
}

Corpus read_corpus(const std::string& path, const io::Tokenizer& tokenizer,
                   const ReadOptions& options, ReadReport* report) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored) && io::TokenFile::is_one(path)) {
    io::TokenFile file = io::TokenFile::open(path);
    const uint64_t made_with = file.header().tokenizer_hash;
    if (made_with != 0 && made_with != tokenizer.hash()) {
      throw io::Error(path, 40,
                      "expected tokens of the tokenizer in use, whose hash is " +
                          std::to_string(tokenizer.hash()) + ", got tokens of another, " +
                          std::to_string(made_with));
    }
    if (file.tokens() == 0) throw io::Error(path, 16, "expected tokens, got none");
    if (report != nullptr) {
      *report = {.files = 1,
                 .documents = file.document_ends().size(),
                 .tokens = file.tokens(),
                 .first_fault = ""};
    }
    Corpus corpus = Corpus::of_file(std::move(file));
    check_labels(corpus, path);
    return corpus;
  }
  MemorySink sink;
  const ReadReport result = CorpusReader<MemorySink>(tokenizer, options, sink).run(path);
  if (report != nullptr) *report = result;
  Corpus corpus = Corpus::of_tokens(std::move(sink.all), std::move(sink.documents));
  check_labels(corpus, path);
  return corpus;
}

ReadReport write_corpus(const std::string& path, const io::Tokenizer& tokenizer,
                        const std::string& token_file, const ReadOptions& options) {
  FileSink sink{io::TokenFileWriter(token_file, tokenizer.vocab_size(), tokenizer.hash())};
  ReadReport report = CorpusReader<FileSink>(tokenizer, options, sink).run(path);
  sink.writer.commit();
  return report;
}

}  // namespace diffattn::data
