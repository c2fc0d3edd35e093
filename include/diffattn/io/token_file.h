// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "diffattn/io/file.h"
#include "diffattn/io/tokenizer.h"

// Token files: a tokenised corpus on disk, little-endian.
//
//   0  8 bytes  "DIFFTOKS"
//   8  u32      version, 1
//  12  u32      bytes per token: 2 or 4
//  16  u64      tokens
//  24  u64      documents
//  32  u64      vocabulary size: every token is less than it
//  40  u64      Tokenizer::hash() of the tokenizer; 0 if unknown
//  48  u64      XXH64 of the tokens followed by the document ends
//  56  u64      XXH64 of the 56 bytes before
//  64  tokens, then zeros up to a multiple of 8
//      u64 for each document: its end, in tokens from the start

namespace diffattn::io {

class Hash64;

struct TokenFileHeader {
  static constexpr size_t kBytes = 64;
  uint32_t token_bytes = 2;
  uint64_t tokens = 0;
  uint64_t documents = 0;
  uint64_t vocab_size = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t checksum = 0;

  /// Throws Error if the bytes are not the header of a file of that size.
  static TokenFileHeader parse(std::span<const std::byte, kBytes> bytes, uint64_t file_size,
                               const std::string& file);
  std::array<std::byte, kBytes> to_bytes() const;
  /// Returns the byte offset of the list of document ends.
  uint64_t ends_begin() const;
};

/// Writes a token file, which becomes visible at commit() (see AtomicFile).
class TokenFileWriter {
 public:
  /// Stores tokens in 2 bytes if vocab_size allows it, else in 4.
  TokenFileWriter(const std::string& path, uint64_t vocab_size, uint64_t tokenizer_hash);
  ~TokenFileWriter();

  /// Adds tokens to the open document. Throws Error for a token outside the vocabulary.
  void append(std::span<const TokenId> tokens);
  /// Ends the open document. A document without tokens is not stored.
  void end_document();
  /// Ends the open document and makes the file visible.
  void commit();
  uint64_t tokens() const noexcept { return header_.tokens; }

 private:
  AtomicFile file_;
  TokenFileHeader header_;
  std::unique_ptr<Hash64> hash_;  // hash of the tokens so far
  std::vector<uint64_t> ends_;
};

/// A memory-mapped token file, which may be larger than the machine's memory. open() checks the
/// header and the document ends; read() checks the tokens it returns. Reading is thread-safe.
class TokenFile {
 public:
  static TokenFile open(const std::string& path);
  /// True if the file starts with the magic bytes of a token file.
  static bool is_one(const std::string& path);
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;
  ~TokenFile();

  uint64_t tokens() const noexcept { return header_.tokens; }
  /// Ends of the documents, in tokens. Each document begins where the previous one ends.
  const std::vector<uint64_t>& document_ends() const noexcept { return ends_; }
  const TokenFileHeader& header() const noexcept { return header_; }
  const std::string& name() const noexcept;

  /// Copies the tokens from begin on. Throws Error if the range ends beyond the file, if the file
  /// has shrunk, or if a token is outside the vocabulary.
  void read(uint64_t begin, std::span<TokenId> out) const;
  /// Reads the whole file. Throws Error if the checksum is wrong.
  void verify() const;

 private:
  struct Mapping;
  TokenFile(std::unique_ptr<Mapping> mapping, const TokenFileHeader& header,
            std::vector<uint64_t> ends);
  std::unique_ptr<Mapping> mapping_;
  TokenFileHeader header_;
  std::vector<uint64_t> ends_;
};

}  // namespace diffattn::io
