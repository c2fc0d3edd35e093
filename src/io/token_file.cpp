// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/token_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "diffattn/io/error.h"
#include "io/checked.h"
#include "io/hash.h"

namespace diffattn::io {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "DIFFTOKS";
constexpr uint32_t kVersion = 1;
constexpr size_t kHashedBytes = 56;  // bytes of the header that its checksum covers
constexpr size_t kPieceTokens = size_t{1} << 16;

template <typename T>
T load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <typename T>
void store(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

uint64_t hash_of(std::span<const std::byte> bytes) {
  Hash64 hash;
  hash.update(bytes);
  return hash.digest();
}

/// Returns the size of a file with that header, or nullopt if it overflows 64 bits.
std::optional<uint64_t> file_size_of(const TokenFileHeader& header) {
  const auto token_part = checked_mul(header.tokens, header.token_bytes);
  const auto ends_part = checked_mul(header.documents, 8);
  if (!token_part || !ends_part) return std::nullopt;
  const auto padded = checked_add(*token_part, TokenFileHeader::kBytes + 7);
  if (!padded) return std::nullopt;
  return checked_add(*padded & ~uint64_t{7}, *ends_part);
}

}  // namespace

TokenFileHeader TokenFileHeader::parse(std::span<const std::byte, kBytes> bytes, uint64_t file_size,
                                       const std::string& file) {
  const auto expect = [&](bool holds, uint64_t offset, const std::string& expected, uint64_t got) {
    if (!holds) throw Error(file, offset, "expected " + expected + ", got " + std::to_string(got));
  };
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    throw Error(file, 0, "expected a token file, got another format");
  }
  const auto version = load<uint32_t>(bytes, 8);
  expect(version == kVersion, 8, "version 1", version);
  const uint64_t hash = hash_of(bytes.first(kHashedBytes));
  expect(hash == load<uint64_t>(bytes, kHashedBytes), kHashedBytes,
         "the header's checksum " + std::to_string(hash), load<uint64_t>(bytes, kHashedBytes));
  TokenFileHeader header;
  header.token_bytes = load<uint32_t>(bytes, 12);
  header.tokens = load<uint64_t>(bytes, 16);
  header.documents = load<uint64_t>(bytes, 24);
  header.vocab_size = load<uint64_t>(bytes, 32);
  header.tokenizer_hash = load<uint64_t>(bytes, 40);
  header.checksum = load<uint64_t>(bytes, 48);
  expect(header.token_bytes == 2 || header.token_bytes == 4, 12, "2 or 4 bytes per token",
         header.token_bytes);
  expect(header.vocab_size <= (uint64_t{1} << 32), 32, "a vocabulary of at most 2^32",
         header.vocab_size);
  expect(header.documents <= header.tokens, 24, "no more documents than tokens", header.documents);
  const auto size = file_size_of(header);
  expect(size && *size == file_size, 16,
         "a file of " + (size ? std::to_string(*size) : std::string("2^64 or more")) + " bytes",
         file_size);
  return header;
}

std::array<std::byte, TokenFileHeader::kBytes> TokenFileHeader::to_bytes() const {
  std::array<std::byte, kBytes> bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  store(bytes, 8, kVersion);
  store(bytes, 12, token_bytes);
  store(bytes, 16, tokens);
  store(bytes, 24, documents);
  store(bytes, 32, vocab_size);
  store(bytes, 40, tokenizer_hash);
  store(bytes, 48, checksum);
  store(bytes, kHashedBytes, hash_of(std::span(bytes).first(kHashedBytes)));
  return bytes;
}

uint64_t TokenFileHeader::ends_begin() const {
  return (kBytes + tokens * token_bytes + 7) & ~uint64_t{7};
}

TokenFileWriter::TokenFileWriter(const std::string& path, uint64_t vocab_size,
                                 uint64_t tokenizer_hash)
    : file_(path), hash_(std::make_unique<Hash64>()) {
  header_.token_bytes = vocab_size <= 65536 ? 2 : 4;
  header_.vocab_size = vocab_size;
  header_.tokenizer_hash = tokenizer_hash;
  file_.append(std::span<const std::byte>(std::array<std::byte, TokenFileHeader::kBytes>{}));
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::append(std::span<const TokenId> tokens) {
  std::vector<uint16_t> narrow;
  for (const TokenId token : tokens) {
    if (token >= header_.vocab_size) {
      throw Error(file_.path(), "expected tokens below " + std::to_string(header_.vocab_size) +
                                    ", got " + std::to_string(token));
    }
  }
  std::span<const std::byte> bytes = std::as_bytes(tokens);
  if (header_.token_bytes == 2) {
    narrow.assign(tokens.begin(), tokens.end());
    bytes = std::as_bytes(std::span(std::as_const(narrow)));
  }
  file_.append(bytes);
  hash_->update(bytes);
  header_.tokens += tokens.size();
}

void TokenFileWriter::end_document() {
  if (header_.tokens > (ends_.empty() ? 0 : ends_.back())) ends_.push_back(header_.tokens);
}

void TokenFileWriter::commit() {
  end_document();
  const uint64_t end = TokenFileHeader::kBytes + header_.tokens * header_.token_bytes;
  const std::array<std::byte, 8> zeros{};
  file_.append(std::span(zeros).first(header_.ends_begin() - end));
  const auto ends = std::as_bytes(std::span(std::as_const(ends_)));
  file_.append(ends);
  hash_->update(ends);
  header_.documents = ends_.size();
  header_.checksum = hash_->digest();
  file_.write_at(0, header_.to_bytes());
  file_.commit();
}

struct TokenFile::Mapping {
  explicit Mapping(File opened) : file(std::move(opened)) {
    const uint64_t size = file.size();
    if (size == 0) return;
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
    if (address == MAP_FAILED) {
      throw Error(file.name(),
                  std::string("expected to map the file, got ") + std::strerror(errno));
    }
    bytes = {static_cast<const std::byte*>(address), static_cast<size_t>(size)};
  }
  ~Mapping() {
    if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  }

  /// Throws Error if the file has shrunk: reading a page past its end would raise SIGBUS.
  void expect_whole() const {
    struct stat now {};
    if (::fstat(file.fd(), &now) != 0 || static_cast<uint64_t>(now.st_size) < bytes.size()) {
      throw Error(file.name(), "expected a file of " + std::to_string(bytes.size()) +
                                   " bytes, got a file that has shrunk since it was opened");
    }
  }

  File file;
  std::span<const std::byte> bytes;
};

TokenFile::TokenFile(std::unique_ptr<Mapping> mapping, const TokenFileHeader& header,
                     std::vector<uint64_t> ends)
    : mapping_(std::move(mapping)), header_(header), ends_(std::move(ends)) {}
TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&&) noexcept = default;
TokenFile::~TokenFile() = default;

TokenFile TokenFile::open(const std::string& path) {
  File file = File::open(path);
  std::array<std::byte, TokenFileHeader::kBytes> head;
  if (file.size() < head.size()) {
    throw Error(path, "expected a token file of at least " + std::to_string(head.size()) +
                          " bytes, got " + std::to_string(file.size()));
  }
  file.read(0, head);
  const TokenFileHeader header = TokenFileHeader::parse(head, file.size(), path);
  std::vector<uint64_t> ends(static_cast<size_t>(header.documents));
  file.read(header.ends_begin(), std::as_writable_bytes(std::span(ends)));
  uint64_t before = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] <= before || ends[i] > header.tokens) {
      throw Error(path, header.ends_begin() + 8 * i,
                  "expected increasing document ends up to " + std::to_string(header.tokens) +
                      ", got " + std::to_string(ends[i]) + " after " + std::to_string(before));
    }
    before = ends[i];
  }
  if (before != header.tokens) {
    throw Error(path, header.ends_begin(),
                "expected the last document to end at " + std::to_string(header.tokens) + ", got " +
                    std::to_string(before));
  }
  return {std::make_unique<Mapping>(std::move(file)), header, std::move(ends)};
}

bool TokenFile::is_one(const std::string& path) {
  const File file = File::open(path);
  std::array<std::byte, kMagic.size()> magic;
  if (file.size() < magic.size()) return false;
  file.read(0, magic);
  return std::memcmp(magic.data(), kMagic.data(), kMagic.size()) == 0;
}

const std::string& TokenFile::name() const noexcept { return mapping_->file.name(); }

void TokenFile::read(uint64_t begin, std::span<TokenId> out) const {
  if (begin > header_.tokens || out.size() > header_.tokens - begin) {
    throw Error(name(), "expected a range within " + std::to_string(header_.tokens) +
                            " tokens, got " + std::to_string(out.size()) + " from " +
                            std::to_string(begin));
  }
  mapping_->expect_whole();
  const std::byte* from =
      mapping_->bytes.data() + TokenFileHeader::kBytes + begin * header_.token_bytes;
  TokenId largest = 0;
  for (size_t i = 0; i < out.size(); ++i, from += header_.token_bytes) {
    TokenId token = 0;
    std::memcpy(&token, from, header_.token_bytes);
    out[i] = token;
    largest = std::max(largest, token);
  }
  if (!out.empty() && largest >= header_.vocab_size) {
    const auto bad = std::find_if(out.begin(), out.end(),
                                  [&](TokenId token) { return token >= header_.vocab_size; });
    const uint64_t index = begin + static_cast<uint64_t>(bad - out.begin());
    throw Error(name(), TokenFileHeader::kBytes + index * header_.token_bytes,
                "expected a token below " + std::to_string(header_.vocab_size) + ", got " +
                    std::to_string(*bad));
  }
}

void TokenFile::verify() const {
  std::vector<TokenId> piece(std::min<uint64_t>(kPieceTokens, header_.tokens));
  Hash64 hash;
  for (uint64_t at = 0; at < header_.tokens;) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(kPieceTokens, header_.tokens - at));
    read(at, std::span(piece).first(count));
    hash.update(mapping_->bytes.subspan(TokenFileHeader::kBytes + at * header_.token_bytes,
                                        count * header_.token_bytes));
    at += count;
  }
  hash.update(std::as_bytes(std::span(ends_)));
  if (hash.digest() != header_.checksum) {
    throw Error(name(), 48,
                "expected the checksum " + std::to_string(hash.digest()) + ", got " +
                    std::to_string(header_.checksum));
  }
}

}  // namespace diffattn::io
