// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/token_file.h"

#include <cstring>
#include <random>

#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::error_of;
using testing::holds;
using testing::slurp;
using testing::TempFolder;

using Documents = std::vector<std::vector<TokenId>>;

Documents random_documents(unsigned seed, uint64_t vocab_size) {
  std::mt19937_64 random(seed);
  Documents documents(1 + random() % 12);
  for (auto& document : documents) {
    document.resize(1 + random() % 50);
    for (TokenId& token : document) token = static_cast<TokenId>(random() % vocab_size);
  }
  return documents;
}

void write(const std::string& path, const Documents& documents, uint64_t vocab_size) {
  TokenFileWriter writer(path, vocab_size, 77);
  for (const auto& document : documents) {
    const size_t half = document.size() / 2;
    writer.append(std::span(document).first(half));
    writer.append(std::span(document).subspan(half));
    writer.end_document();
  }
  writer.commit();
}

Documents read(const TokenFile& file) {
  Documents documents;
  for (uint64_t begin = 0; const uint64_t end : file.document_ends()) {
    documents.emplace_back(end - begin);
    file.read(begin, documents.back());
    begin = end;
  }
  return documents;
}

TEST(TokenFile, GivesBackWhatWasWritten) {
  const TempFolder folder;
  for (const uint64_t vocab_size : {1ull, 257ull, 65536ull, 65537ull, 1ull << 32}) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      const Documents documents = random_documents(seed, vocab_size);
      const std::string path = folder / "tokens";
      write(path, documents, vocab_size);
      EXPECT_TRUE(TokenFile::is_one(path));
      const TokenFile file = TokenFile::open(path);
      EXPECT_EQ(read(file), documents);
      EXPECT_EQ(file.header().token_bytes, vocab_size <= 65536 ? 2u : 4u);
      EXPECT_EQ(file.header().tokenizer_hash, 77u);
      EXPECT_NO_THROW(file.verify());
    }
  }
}

TEST(TokenFile, EmptyDocumentsAreLeftOutAndAnEmptyFileIsValid) {
  const TempFolder folder;
  write(folder / "none", {}, 10);
  EXPECT_EQ(TokenFile::open(folder / "none").tokens(), 0u);
  write(folder / "some", {{}, {1}, {}, {2, 3}, {}}, 10);
  EXPECT_EQ(read(TokenFile::open(folder / "some")), (Documents{{1}, {2, 3}}));
}

TEST(TokenFile, NothingAppearsBeforeCommit) {
  const TempFolder folder;
  {
    TokenFileWriter writer(folder / "tokens", 10, 0);
    writer.append(std::vector<TokenId>{1, 2});
  }
  EXPECT_EQ(folder.entries(), 0u);
  TokenFileWriter writer(folder / "tokens", 10, 0);
  EXPECT_TRUE(holds(error_of([&] {
                      writer.append(std::vector<TokenId>{1, 10});
                    }),
                    "below 10, got 10"));
}

TEST(TokenFile, RangesOutsideAreErrors) {
  const TempFolder folder;
  write(folder / "tokens", {{1, 2, 3}}, 10);
  const TokenFile file = TokenFile::open(folder / "tokens");
  std::vector<TokenId> two(2);
  EXPECT_NO_THROW(file.read(1, two));
  EXPECT_TRUE(holds(error_of([&] { file.read(2, two); }), "within 3 tokens, got 2 from 2"));
  EXPECT_THROW(file.read(~uint64_t{0}, two), Error);
}

// No truncation or bit flip causes a crash, and none changes tokens without an error from open(),
// read() or verify().
TEST(TokenFile, EveryTruncationAndEveryBitFlip) {
  const TempFolder folder;
  const std::string path = folder / "tokens";
  const Documents documents = {{299, 0, 7}, {5}, {256, 1, 2, 3, 4}};
  write(path, documents, 300);
  const std::string content = slurp(path);
  for (size_t size = 0; size < content.size(); ++size) {
    folder.put("tokens", std::string_view(content).substr(0, size));
    EXPECT_THROW(TokenFile::open(path), Error) << size;
    EXPECT_EQ(TokenFile::is_one(path), size >= 8)
        << size;  // a damaged file still counts as a token file
  }
  folder.put("tokens", content + "x");
  EXPECT_THROW(TokenFile::open(path), Error);
  int undetected = 0;
  for (size_t bit = 0; bit < 8 * content.size(); ++bit) {
    std::string flipped = content;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    folder.put("tokens", flipped);
    try {
      const TokenFile file = TokenFile::open(path);
      file.verify();
      EXPECT_EQ(read(file), documents) << "bit " << bit;
      ++undetected;
    } catch (const Error&) {
    }
  }
  EXPECT_LE(undetected, 8 * 7);  // nothing checks the zeros between tokens and document ends
}

// Headers with a correct checksum and hostile numbers.
TEST(TokenFile, HostileNumbers) {
  const std::vector<uint64_t> numbers = {0,          1,          7,     1u << 31,
                                         1ull << 61, 1ull << 63, ~0ull, ~0ull - 70};
  for (const uint64_t tokens : numbers) {
    for (const uint64_t documents : numbers) {
      for (const uint32_t width : {0u, 1u, 2u, 4u, 8u, 0xffffffffu}) {
        TokenFileHeader header;
        header.token_bytes = width;
        header.tokens = tokens;
        header.documents = documents;
        header.vocab_size = 10;
        const auto bytes = header.to_bytes();
        // The exact size in 128 bits; it may exceed 64 bits.
        const unsigned __int128 bytes_of_tokens = static_cast<unsigned __int128>(tokens) * width;
        const unsigned __int128 exact =
            (64 + bytes_of_tokens + 7) / 8 * 8 + static_cast<unsigned __int128>(documents) * 8;
        const bool valid = (width == 2 || width == 4) && documents <= tokens && exact >> 64 == 0;
        bool parsed = true;
        try {
          TokenFileHeader::parse(bytes, static_cast<uint64_t>(exact), "f");
        } catch (const Error&) {
          parsed = false;
        }
        EXPECT_EQ(parsed, valid) << tokens << " " << documents << " " << width;
      }
    }
  }
}

TEST(TokenFile, DocumentsEndInIncreasingOrder) {
  const TempFolder folder;
  write(folder / "tokens", {{1}, {2}, {3}}, 10);
  const std::string content = slurp(folder / "tokens");
  const auto error_with = [&](size_t end, char value) {
    std::string changed = content;
    changed[64 + 8 + 8 * end] = value;
    folder.put("tokens", changed);
    return error_of([&] { TokenFile::open(folder / "tokens"); });
  };
  EXPECT_TRUE(holds(error_with(0, 0), "byte 72: expected increasing document ends"));
  EXPECT_TRUE(holds(error_with(1, 1), "byte 80: expected increasing document ends up to 3, got 1"));
  EXPECT_TRUE(holds(error_with(2, 4), "byte 88: expected increasing document ends up to 3, got 4"));
}

TEST(TokenFile, TokensOutsideTheVocabularyAreNamed) {
  const TempFolder folder;
  write(folder / "tokens", {{1, 2, 3}}, 10);
  std::string content = slurp(folder / "tokens");
  content[64 + 2] = 11;
  folder.put("tokens", content);
  const TokenFile file = TokenFile::open(folder / "tokens");
  std::vector<TokenId> all(3);
  EXPECT_TRUE(
      holds(error_of([&] { file.read(0, all); }), "byte 66: expected a token below 10, got 11"));
  content[64 + 2] = 10;
  folder.put("tokens", content);
  const TokenFile first = TokenFile::open(folder / "tokens");
  EXPECT_TRUE(
      holds(error_of([&] { first.read(0, all); }), "byte 66: expected a token below 10, got 10"));
  EXPECT_THROW(file.verify(), Error);
}

TEST(TokenFile, AFileThatShrinksIsAnErrorNotASignal) {
  const TempFolder folder;
  Documents documents(1, std::vector<TokenId>(100'000, 5));
  write(folder / "tokens", documents, 10);
  const TokenFile file = TokenFile::open(folder / "tokens");
  std::filesystem::resize_file(folder / "tokens", 4096);
  std::vector<TokenId> tokens(10);
  EXPECT_TRUE(holds(error_of([&] { file.read(90'000, tokens); }), "has shrunk"));
}

}  // namespace
}  // namespace diffattn::io
