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
//  32  u64      vocabulary: every token is below it
//  40  u64      Tokenizer::hash() of the tokenizer; 0: not known
//  48  u64      XXH64 of the tokens followed by the document ends
//  56  u64      XXH64 of the 56 bytes before
//  64  tokens, then zeros up to a multiple of 8
//      u64 for each document: its end, in tokens from the start

namespace diffattn::io {

class Hash64;

struct TokenFileHeader {
  static constexpr std::size_t kBytes = 64;
  std::uint32_t token_bytes = 2;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t tokenizer_hash = 0;
  std::uint64_t checksum = 0;

  /// Throws Error unless the bytes are a header of a file of that size.
  static TokenFileHeader parse(std::span<const std::byte, kBytes> bytes, std::uint64_t file_size,
                               const std::string& file);
  std::array<std::byte, kBytes> to_bytes() const;
  /// Where the document ends begin.
  std::uint64_t ends_begin() const;
};

/// Writes a token file, which appears at commit() or not at all.
class TokenFileWriter {
 public:
  /// Tokens take 2 bytes when vocab_size allows it.
  TokenFileWriter(const std::string& path, std::uint64_t vocab_size, std::uint64_t tokenizer_hash);
  ~TokenFileWriter();

  /// Adds tokens to the open document. Throws Error for a token outside the vocabulary.
  void append(std::span<const TokenId> tokens);
  /// Closes the open document; one without tokens is left out.
  void end_document();
  /// Ends the open document, too.
  void commit();
  std::uint64_t tokens() const noexcept { return header_.tokens; }

 private:
  AtomicFile file_;
  TokenFileHeader header_;
  std::unique_ptr<Hash64> hash_;  // of the tokens so far
  std::vector<std::uint64_t> ends_;
};

/// A token file, mapped into memory: it may be larger than that. Header and document ends are
/// checked when it is opened, tokens as they are read. Reading is thread-safe.
class TokenFile {
 public:
  static TokenFile open(const std::string& path);
  /// True when the file begins like a token file.
  static bool is_one(const std::string& path);
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;
  ~TokenFile();

  std::uint64_t tokens() const noexcept { return header_.tokens; }
  /// End of each document, in tokens; it begins where the one before ends.
  const std::vector<std::uint64_t>& document_ends() const noexcept { return ends_; }
  const TokenFileHeader& header() const noexcept { return header_; }
  const std::string& name() const noexcept;

  /// Copies the tokens from begin on. Throws Error when they are not all there, when the file has
  /// become shorter, or when one is outside the vocabulary.
  void read(std::uint64_t begin, std::span<TokenId> out) const;
  /// Reads everything and compares the checksum.
  void verify() const;

 private:
  struct Mapping;
  TokenFile(std::unique_ptr<Mapping> mapping, const TokenFileHeader& header,
            std::vector<std::uint64_t> ends);
  std::unique_ptr<Mapping> mapping_;
  TokenFileHeader header_;
  std::vector<std::uint64_t> ends_;
};

}  // namespace diffattn::io
