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

/// The tokens [begin, end) of a corpus.
struct Document {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Tokenised documents, in memory or in a mapped file. Immutable and cheap to copy.
class Corpus {
 public:
  /// Throws io::Error if a document is not inside `tokens`.
  static Corpus of_tokens(std::vector<TokenId> tokens, std::vector<Document> documents);
  static Corpus of_file(io::TokenFile file);

  const std::vector<Document>& documents() const noexcept { return *documents_; }
  /// Returns the number of tokens of all documents.
  uint64_t tokens() const noexcept { return tokens_; }
  /// True if a document has two tokens or more: the label of a token is the next one.
  bool has_labels() const noexcept;
  /// Copies the tokens from `begin` on. Throws io::Error outside the corpus.
  void read(uint64_t begin, std::span<TokenId> out) const;
  /// Returns a hash of the documents' boundaries and of the tokens. For a token file, it hashes the
  /// file's checksum instead of the tokens.
  uint64_t fingerprint() const noexcept { return fingerprint_; }

  /// Splits the corpus into two disjoint parts with about 1 - fraction and fraction of its tokens.
  /// The seed assigns whole documents. A corpus of fewer than 20 documents gives the end of each
  /// one to the second part instead. The second part is empty only if fraction is 0 or the corpus
  /// is too small. Throws io::Error unless fraction is in [0, 1).
  std::pair<Corpus, Corpus> split(double fraction, uint64_t seed) const;

 private:
  struct Store;
  Corpus(std::shared_ptr<const Store> store, std::vector<Document> documents);
  std::shared_ptr<const Store> store_;
  std::shared_ptr<const std::vector<Document>> documents_;
  uint64_t tokens_ = 0;
  uint64_t fingerprint_ = 0;
};

/// The progress of reading a text source, and its totals at the end.
struct ReadReport {
  uint64_t files = 0;
  uint64_t bytes = 0;  // read so far
  uint64_t total_bytes = 0;
  uint64_t documents = 0;
  uint64_t tokens = 0;
  uint64_t skipped = 0;                         // bad lines
  std::string first_fault;                      // message about the first bad line
  std::vector<std::string> skipped_files = {};  // in a folder, because they are not text
};

struct ReadOptions {
  bool skip_bad = false;    // skip and count bad lines of JSONL files instead of throwing
  bool end_of_text = true;  // end each document with the tokenizer's end-of-text token, if any
  /// Called after each file, and every few MiB inside a large one.
  std::function<void(const ReadReport&)> progress;
};

/// Returns the files of a text source in reading order: the file itself, or every regular file
/// below a folder, sorted by path. Skips names that begin with '.' and files with a NUL byte in
/// their first 4096 bytes, which are not text; `skipped` gets those.
std::vector<std::string> text_files(const std::string& path,
                                    std::vector<std::string>* skipped = nullptr);

/// Reads and tokenises `path`: a text file (one document), a JSONL file (`*.jsonl`, one document
/// per line {"text": ...}), a folder of both, or a token file, which must have been written with
/// this tokenizer. Throws io::Error if it cannot read the source, finds no text or no document of
/// two tokens.
Corpus read_corpus(const std::string& path, const io::Tokenizer& tokenizer,
                   const ReadOptions& options = {}, ReadReport* report = nullptr);

/// Tokenises `path` into a token file, for text that does not fit into memory. Throws io::Error.
ReadReport write_corpus(const std::string& path, const io::Tokenizer& tokenizer,
                        const std::string& token_file, const ReadOptions& options = {});

}  // namespace diffattn::data
