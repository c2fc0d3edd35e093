// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/io/jsonl.h"
#include "diffattn/io/token_file.h"
#include "diffattn/io/tokenizer.h"

namespace diffattn::data {

using io::TokenId;

/// Tokens [begin, end) of a corpus.
struct Document {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Tokenised documents, in memory or in a mapped file. Immutable and cheap to copy.
class Corpus {
 public:
  /// documents must lie inside tokens.
  static Corpus of_tokens(std::vector<TokenId> tokens, std::vector<Document> documents);
  static Corpus of_file(io::TokenFile file);

  const std::vector<Document>& documents() const noexcept { return *documents_; }
  /// Of all documents.
  std::uint64_t tokens() const noexcept { return tokens_; }
  /// Copies tokens from begin on; throws io::Error outside the corpus.
  void read(std::uint64_t begin, std::span<TokenId> out) const;
  /// One number for what the corpus holds: its documents' places, and the checksum of a file.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }

  /// Two corpora without a common token: about 1 - fraction and fraction of this one. A document
  /// goes where its number and seed send it; fewer than 20 documents are cut at their ends instead,
  /// each in the same proportion. The second is not empty unless fraction is 0 or there are fewer
  /// than two tokens.
  std::pair<Corpus, Corpus> split(double fraction, std::uint64_t seed) const;

 private:
  struct Store;
  Corpus(std::shared_ptr<const Store> store, std::vector<Document> documents);
  std::shared_ptr<const Store> store_;
  std::shared_ptr<const std::vector<Document>> documents_;
  std::uint64_t tokens_ = 0;
  std::uint64_t fingerprint_ = 0;
};

/// What reading text came to.
struct ReadReport {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;  // of these files, so far
  std::uint64_t total_bytes = 0;
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::uint64_t skipped = 0;  // bad lines
  std::string first_fault;    // of the first of them
};

struct ReadOptions {
  bool skip_bad = false;    // count bad lines of JSONL files instead of throwing
  bool end_of_text = true;  // close each document with the tokenizer's end of text, if it has one
  /// Called after each file, and within large ones.
  std::function<void(const ReadReport&)> progress;
};

/// The files of a text source, in the order in which they are read: the file itself, or every
/// regular file below a folder, sorted by path; names that begin with '.' and files with a NUL byte
/// in their first 4096 are left out.
std::vector<std::string> text_files(const std::string& path);

/// Reads and tokenises `path`: a text file (one document), a JSONL file (`*.jsonl`, one document
/// per
/// {"text": ...}), a folder of both, or a token file, which is mapped and must have been made with
/// this tokenizer. Throws io::Error, also when there is not one token.
Corpus read_corpus(const std::string& path, const io::Tokenizer& tokenizer,
                   const ReadOptions& options = {}, ReadReport* report = nullptr);

/// The same into a token file, for text that does not fit into memory.
ReadReport write_corpus(const std::string& path, const io::Tokenizer& tokenizer,
                        const std::string& token_file, const ReadOptions& options = {});

}  // namespace diffattn::data
