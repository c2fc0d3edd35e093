// SPDX-License-Identifier: Apache-2.0
//
// Guards and limits whose removal no other test notices. Mutation testing (tools/mutation) found
// them.

#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "diffattn/io/file.h"
#include "diffattn/io/json.h"
#include "diffattn/io/safetensors.h"
#include "diffattn/io/token_file.h"
#include "diffattn/io/tokenizer_training.h"
#include "io/cgroup.h"
#include "io/hash.h"
#include "io/manifest.h"
#include "io/safetensors/rules.h"
#include "io/settings.h"
#include "io/text.h"
#include "io/tokenizer/patterns.h"
#include "io/unicode/characters.h"
#include "io/unicode/nfc.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::error_of;
using testing::holds;
using testing::slurp;
using testing::TempFolder;

TEST(Guards, AFileWithoutAFolderIsWrittenToTheCurrentOne) {
  const TempFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_text("bare", "text");
  const std::string joined = Directory::open(".").join("bare");
  std::filesystem::current_path(before);
  EXPECT_EQ(slurp(folder / "bare"), "text");
  EXPECT_EQ(joined, "bare");
}

TEST(Guards, FolderNamesHaveNoNul) {
  EXPECT_TRUE(holds(error_of([] { Directory::open(std::string("/\0x", 3)); }), "NUL byte"));
}

TEST(Guards, AFolderOpensWhileStandardInputIsClosed) {
  const TempFolder folder;
  const int kept = ::dup(STDIN_FILENO);
  ::close(STDIN_FILENO);  // the folder gets the descriptor 0
  EXPECT_NO_THROW(Directory::open(folder.path()));
  ::dup2(kept, STDIN_FILENO);
  ::close(kept);
}

TEST(Guards, IncompleteLinesOfTheKernelNameNoGroup) {
  const std::string mount = "31 22 0:27 / /point rw - cgroup2 cgroup2 rw";
  EXPECT_EQ(memory_limit_files("0::/", mount).size(), 1u);
  EXPECT_TRUE(memory_limit_files("0::/", "31 22 0:27 / /point rw - cgroup2 cgroup2").empty());
  EXPECT_TRUE(memory_limit_files("0::/", "31 22 0:27 / /point - cgroup2 cgroup2 rw").empty());
  EXPECT_TRUE(memory_limit_files("", mount).empty());
  EXPECT_TRUE(memory_limit_files("0:", mount).empty());
}

TEST(Guards, HashesOfWholeBlocks) {
  EXPECT_EQ(hash64("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(hash64(std::string(31, 'a')), 0xfe47067cda802916u);
  EXPECT_EQ(hash64(std::string(32, 'a')), 0x856e843298f99ad7u);
  EXPECT_EQ(hash64(std::string(64, 'a')), 0xecdb66a0aa9322e2u);
}

TEST(Guards, TheFirstCharacterAfterHangulSyllablesStays) {
  EXPECT_EQ(unicode::nfc("\xed\x9e\xa3"), "\xed\x9e\xa3");
  EXPECT_EQ(unicode::nfc("\xed\x9e\xa4"), "\xed\x9e\xa4");
  EXPECT_EQ(unicode::nfc("\xed\x9e\xa4\xcc\x81"), "\xed\x9e\xa4\xcc\x81");  // with an accent
}

TEST(Guards, ErrorsPointToTheBracketOrTheNumber) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_json(text, "t", {.max_depth = 2, .max_values = 4}); });
  };
  EXPECT_TRUE(holds(error("[1,[2,[3]]]"), "t: byte 6: expected nesting"));
  EXPECT_TRUE(holds(error("[1,{\"a\":{}}]"), "t: byte 8: expected nesting"));
  EXPECT_TRUE(holds(error("[1,2,3,45]"), "t: byte 7: expected at most 4 values"));
  EXPECT_TRUE(holds(error("[1,2,3,null]"), "t: byte 7: expected at most 4 values"));
  EXPECT_TRUE(holds(error("[1,2,3,true]"), "t: byte 7: expected at most 4 values"));
  EXPECT_TRUE(holds(error("[1,2,3,\"a\\\"b\"]"), "t: byte 7: expected at most 4 values"));
}

TEST(Guards, AWrongWordInJsonIsNamed) {
  const std::string error = error_of([] { parse_json("[tru]", "t"); });
  EXPECT_TRUE(holds(error, "t: byte 4: expected valid JSON, got ']'")) << error;
}

TEST(Guards, AHeaderThatIsCutOffIsRefused) {
  const std::string whole = testing::safetensors_file("{}      ", 0);
  const auto parse = [&](size_t bytes) {
    const std::string_view head = std::string_view(whole).substr(0, bytes);
    SafetensorsHeader::parse(testing::bytes_of(head), whole.size(), "m");
  };
  EXPECT_NO_THROW(parse(16));
  EXPECT_TRUE(holds(error_of([&] { parse(15); }), "m: byte 15: expected 8 bytes of header, got 7"));
}

TEST(Guards, TrainingReportsItsProgress) {
  const TempFolder folder;
  const std::string path = folder.put("text", "one two one two one two");
  TokenizerTrainer trainer({.vocab_size = 262, .threads = 1});
  uint64_t read = 0, merged = 0;
  trainer.add_file(path, [&](const TrainingProgress& progress) {
    EXPECT_EQ(progress.phase, TrainingProgress::Phase::kCount);
    read = progress.done;
  });
  trainer.train([&](const TrainingProgress& progress) {
    EXPECT_EQ(progress.phase, TrainingProgress::Phase::kMerge);
    merged = progress.done;
  });
  EXPECT_EQ(read, 23u);
  EXPECT_EQ(merged, 262u);
}

TEST(Guards, ASpecialTokenMayBeAByteOfTheAlphabet) {
  TokenizerTrainer trainer({.vocab_size = 300, .special_tokens = {"a", "<s>"}, .threads = 1});
  trainer.add_text("banana banana");
  const Tokenizer tokenizer = trainer.train();
  EXPECT_EQ(tokenizer.token_to_id("a"), 0u);
  EXPECT_EQ(tokenizer.token_to_id("missing"), std::nullopt);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("bn"), false), "bn");
}

TEST(Guards, PathsInAManifestStayInItsFolder) {
  EXPECT_TRUE(is_manifest_path("rank-0/A_z.09"));
  for (const char* path : {"", ".", "..", "a/.", "./a", "a[b", "a{b", "a b", "a/b/c", "/a", "a/"}) {
    EXPECT_FALSE(is_manifest_path(path)) << path;
  }
  const TempFolder folder;
  folder.put("a b", "x");
  EXPECT_TRUE(holds(error_of([&] { manifest_of(folder.path(), 1); }), "got 'a b'"));
}

TEST(Guards, NamesByTheirLetters) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = std::string("a") + static_cast<char>(byte);
    const bool bare = byte < 128 && (std::isalnum(byte) != 0 || byte == '_' || byte == '-');
    EXPECT_EQ(is_manifest_path(name), bare || byte == '.') << byte;
    EXPECT_EQ(is_manifest_path(name + "/" + name), bare || byte == '.') << byte;
    const auto read_key = [&] { parse_settings("\"" + name + "\" = 1", "run.toml"); };
    if (bare) {
      EXPECT_NO_THROW(read_key()) << byte;
    } else {
      EXPECT_THROW(read_key(), Error) << byte;
    }
    EXPECT_EQ(name_fault(name).has_value(), byte < 0x20 || byte == 0x7f) << byte;
    // U+0080 to U+009F are control characters, too.
    const bool control = byte >= 0x80 && byte < 0xa0;
    if (byte >= 0x80 && byte < 0xc0) {
      EXPECT_EQ(name_fault("a\xc2" + name.substr(1)).has_value(), control) << byte;
    }
  }
  EXPECT_TRUE(is_manifest_path(std::string(255, 'a')));
  EXPECT_FALSE(is_manifest_path(std::string(256, 'a')));
  EXPECT_FALSE(name_fault(std::string(kMaxTensorNameBytes, 'a')));
  EXPECT_TRUE(name_fault(std::string(kMaxTensorNameBytes + 1, 'a')));
}

TEST(Guards, AWriterTakesNoMoreThanATensorsBytes) {
  const TempFolder folder;
  SafetensorsWriter writer(folder / "w", {{"x", Dtype::kU8, {2}}});
  writer.append("x", testing::bytes_of("a"));
  EXPECT_THROW(writer.append("x", testing::bytes_of("bc")), Error);
}

TEST(Guards, SettingsHavePlainKeys) {
  for (const char* key : {"a~b", "a{b", "a b", "a/b"}) {
    EXPECT_THROW(parse_settings("\"" + std::string(key) + "\" = 1", "run.toml"), Error) << key;
  }
}

TEST(Guards, ChunksOfCapitalLettersEndBetweenWords) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "WORD ";
  TextChunks chunks(folder.put("text", text), 16);
  for (std::string chunk; chunks.next(chunk);) {
    EXPECT_TRUE(chunk.ends_with(chunks.position() == text.size() ? "WORD " : "WORD")) << chunk;
  }
}

TEST(Guards, ChunksEndOnlyBehindLetters) {
  const TempFolder folder;
  TextChunks chunks(folder.put("text", "word {{ {{ {{ {{ {{ end"), 16);
  std::string chunk;
  EXPECT_TRUE(chunks.next(chunk));
  EXPECT_EQ(chunk, "word");
}

TEST(Guards, ChunksWithoutWordsEndAtALineOrAreCut) {
  const TempFolder folder;
  const std::string line = std::string(100, '1') + "\n";
  TextChunks chunks(folder.put("text", line + std::string(1000, '2')), 16);
  std::string chunk;
  EXPECT_TRUE(chunks.next(chunk));
  EXPECT_EQ(chunk, line);
  while (chunks.next(chunk)) EXPECT_LE(chunk.size(), 17u * 16u);
}

TEST(Guards, ATokenFileFillsItsFileAndMatchesItsChecksum) {
  const TempFolder folder;
  const std::string path = folder / "tokens";
  TokenFileWriter writer(path, 300, 0);
  const std::vector<TokenId> ids = {1, 2, 3};
  writer.append(ids);
  writer.commit();
  const std::string good = slurp(path);
  TokenFile::open(path).verify();
  EXPECT_NO_THROW(TokenFile::open(path).read(3, {}));
  folder.put("tokens", good + std::string(8, '\0'));
  EXPECT_TRUE(holds(error_of([&] { TokenFile::open(path); }), "expected a file of"));
  std::string flipped = good;
  flipped[TokenFileHeader::kBytes] ^= 4;
  folder.put("tokens", flipped);
  EXPECT_TRUE(holds(error_of([&] { TokenFile::open(path).verify(); }), "expected the checksum"));
}

TEST(Guards, ContractionsFollowTheirPattern) {
  for (const char* text : {"'sx", "'tx", "'mx", "'dx"}) {
    EXPECT_EQ(match_end(Pattern::kGpt2, text, 0), 2u) << text;
  }
  for (const char* text : {"'rex", "'vex", "'llx"}) {
    EXPECT_EQ(match_end(Pattern::kGpt2, text, 0), 3u) << text;
  }
  EXPECT_EQ(match_end(Pattern::kGpt2, "'Dx", 0), 1u);
  EXPECT_EQ(match_end(Pattern::kLlama3, "'Dx", 0), 2u);
  EXPECT_EQ(match_end(Pattern::kGpt2, "'x", 0), 1u);
  EXPECT_EQ(match_end(Pattern::kGpt2, "'\xc5\xbf", 0), 1u);  // U+017F, the long s
  EXPECT_EQ(match_end(Pattern::kLlama3, "'\xc5\xbf", 0), 3u);
}

TEST(Guards, AMatchEndsWithItsText) {
  const std::string_view whole = "!\nx";
  EXPECT_EQ(match_end(Pattern::kLlama3, whole, 0), 2u);
  EXPECT_EQ(match_end(Pattern::kLlama3, whole.substr(0, 1), 0), 1u);
}

TEST(Guards, ABlockedAccentDoesNotCompose) {
  EXPECT_EQ(unicode::nfc("a\xcc\x81"), "\xc3\xa1");
  EXPECT_EQ(unicode::nfc("a\xcc\x85\xcc\x81"), "a\xcc\x85\xcc\x81");  // U+0305 before U+0301
}

TEST(Guards, ACharacterEndsWithItsText) {
  const std::string_view whole = "\xc3\xa9";
  EXPECT_EQ(unicode::character_at(whole, 0).size, 2u);
  EXPECT_EQ(unicode::character_at(whole.substr(0, 1), 0).code, unicode::Character::kInvalid);
}

TEST(Guards, TheFirstContinuationByteIsInvalid) {
  EXPECT_EQ(unicode::character_at("\x7f", 0).code, 0x7fu);
  EXPECT_EQ(unicode::character_at("\x80", 0).code, unicode::Character::kInvalid);
}

}  // namespace
}  // namespace diffattn::io
