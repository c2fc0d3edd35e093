// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "diffattn/io/tokenizer_training.h"
#include "io/hash.h"
#include "io/text.h"
#include "io/unicode/characters.h"
#include "tests/io/tokenizer/reference_data.h"

namespace diffattn::io {
namespace {

using namespace testing;

const EncodeOptions kPlain{.add_special_tokens = false, .special_from_text = false};

/// Returns random bytes of all kinds: letters, spaces, valid and broken UTF-8, controls.
std::string random_bytes(std::mt19937& random, size_t pieces) {
  static const std::vector<std::string> kPieces = {"a",
                                                   "the ",
                                                   " The",
                                                   "\n",
                                                   "  ",
                                                   "9",
                                                   "\xc3\xa9",
                                                   "\xe4\xb8\x96",
                                                   "\xf0\x9f\x98\x80",
                                                   "\xe2\x82",
                                                   "\xff",
                                                   "\x80",
                                                   "\xed\xa0\x80",
                                                   "\xc0\xaf",
                                                   "\xf4\x90\x80\x80",
                                                   std::string(1, '\0'),
                                                   "'s",
                                                   "..."};
  std::string text;
  for (size_t i = 0; i < pieces; ++i) {
    text += random() % 4 == 0 ? std::string(1, static_cast<char>(random()))
                              : kPieces[random() % kPieces.size()];
  }
  return text;
}

TEST(TokenizerLaws, ByteLevelGivesEveryByteBack) {
  std::mt19937 random(7);
  for (const char* style : {"gpt2", "llama3", "o200k", "digits"}) {
    const Tokenizer tokenizer = Tokenizer::read(data_file(std::string(style) + ".json"));
    for (int round = 0; round < 2000; ++round) {
      const std::string text = random_bytes(random, 1 + random() % 40);
      ASSERT_EQ(tokenizer.decode_bytes(tokenizer.encode(text, kPlain), false), text) << style;
    }
  }
}

TEST(TokenizerLaws, StreamEqualsWhole) {
  std::mt19937 random(8);
  for (const std::string& style : styles()) {
    const Tokenizer tokenizer = Tokenizer::read(data_file(style + ".json"));
    for (int round = 0; round < 300; ++round) {
      const auto ids = tokenizer.encode(random_bytes(random, 1 + random() % 30));
      StreamDecoder stream(tokenizer);
      std::string text;
      for (const TokenId id : ids) {
        const std::string part = stream.push(id);
        ASSERT_TRUE(unicode::is_valid(part));
        text += part;
      }
      text += stream.finish();
      ASSERT_EQ(text, tokenizer.decode(ids)) << style;
    }
  }
}

TEST(TokenizerLaws, StreamHoldsBackHalfCharacters) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(0xe2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.push(0xac), "\xe2\x82\xac");
  EXPECT_EQ(stream.push(0xf0), "");
  EXPECT_EQ(stream.push('a'),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(stream.push(0xc3), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

TEST(TokenizerLaws, BytesAreTheirOwnIds) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.vocab_size(), 257u);
  EXPECT_EQ(tokenizer.end_of_text(), 256u);
  std::string all;
  std::vector<TokenId> ids;
  for (unsigned byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
    ids.push_back(byte);
  }
  EXPECT_EQ(tokenizer.encode(all), ids);
  EXPECT_EQ(tokenizer.decode_bytes(ids), all);
  EXPECT_EQ(tokenizer.encode("a<|endoftext|>"), (std::vector<TokenId>{'a', 256}));
  EXPECT_EQ(tokenizer.encode("<|", kPlain), (std::vector<TokenId>{'<', '|'}));
  EXPECT_EQ(tokenizer.encode("<|endoftext|>", kPlain).size(), 13u);
  EXPECT_EQ(Tokenizer::parse(tokenizer.to_json(), "again").to_json(), tokenizer.to_json());
}

// Ids do not depend on the number of threads that share a tokenizer.
TEST(TokenizerLaws, ThreadsShareOne) {
  const Tokenizer tokenizer = Tokenizer::read(data_file("llama3.json"));
  const auto expected = reference_ids("llama3");
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < expected.size(); i += 2) {
        wrong += tokenizer.encode(reference_strings()[i]) != expected[i];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Short words use a linear search, longer ones a heap, very long ones lists by rank. All must find
// the same merges. The long words consist of short ones that do not merge with each other.
TEST(TokenizerLaws, LongWordsMergeLikeShortOnes) {
  const Tokenizer tokenizer = Tokenizer::read(data_file("gpt2.json"));
  std::mt19937 random(9);
  const std::string corpus = slurp(data_file("corpus.txt"));
  // No merge of this vocabulary contains the bytes of this Armenian letter.
  const std::string wall = "\xd4\xb1";
  for (int round = 0; round < 200; ++round) {
    std::string word;
    std::vector<TokenId> expected;
    const auto wall_ids = tokenizer.encode(wall, kPlain);
    for (int part = 0; part < (round % 20 == 0 ? 900 : 12); ++part) {
      std::string letters;
      while (letters.size() < 6) {
        const char c = corpus[random() % corpus.size()];
        if (c >= 'a' && c <= 'z') letters += c;
      }
      const auto ids = tokenizer.encode(letters, kPlain);
      expected.insert(expected.end(), ids.begin(), ids.end());
      expected.insert(expected.end(), wall_ids.begin(), wall_ids.end());
      word += letters + wall;
    }
    ASSERT_EQ(tokenizer.encode(word, kPlain), expected) << word;
  }
}

// Time is linear in the length of any text.
TEST(TokenizerLaws, LongRunsTakeLinearTime) {
  const size_t size = size_t{1} << 18;
  const std::vector<std::string> runs = {
      "a",         " ",   "\n",           "1",           ".", "'", "\xcc\x81", "\xff",
      "A\xcc\x81", " \n", "\xe4\xb8\x96", "<|im_start|", "'S"};
  for (const std::string& style : styles()) {
    const Tokenizer tokenizer = Tokenizer::read(data_file(style + ".json"));
    for (const std::string& run : runs) {
      std::string text;
      while (text.size() < size) text += run;
      const auto begin = std::chrono::steady_clock::now();
      const auto ids = tokenizer.encode(text);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      EXPECT_LT(spent.count(), 5.0) << style << " " << nlohmann::json::string_t(run.substr(0, 1));
      EXPECT_GT(ids.size(), 0u);
    }
  }
}

TEST(TokenizerTraining, FileTextAndThreadsAgree) {
  const TempFolder folder;
  std::string corpus;
  while (corpus.size() < (size_t{9} << 20)) corpus += slurp(data_file("corpus.txt"));
  const std::string path = folder.put("corpus.txt", corpus);
  const TrainingOptions options{.vocab_size = 400, .threads = 1};
  TokenizerTrainer whole(options);
  whole.add_text(corpus);
  const std::string expected = whole.train().to_json();
  for (const unsigned threads : {1u, 3u}) {
    TrainingOptions other = options;
    other.threads = threads;
    TokenizerTrainer pieces(other);
    uint64_t last = 0, calls = 0;
    pieces.add_file(path, [&](const TrainingProgress& progress) {
      EXPECT_GE(progress.done, last);
      EXPECT_EQ(progress.total, corpus.size());
      last = progress.done;
      ++calls;
    });
    EXPECT_EQ(last, corpus.size());
    EXPECT_GT(calls, 1u);
    EXPECT_EQ(pieces.train().to_json(), expected);
  }
}

TEST(TokenizerTraining, RefusesAVocabularyWithoutRoom) {
  TokenizerTrainer trainer({.vocab_size = 256});
  const std::string error = error_of([&] { trainer.train(); });
  EXPECT_TRUE(holds(error, "257")) << error;
}

TEST(TextChunks, AddUpToTheFile) {
  const TempFolder folder;
  std::mt19937 random(10);
  for (int round = 0; round < 60; ++round) {
    const std::string text = random_bytes(random, random() % 3000);
    const std::string path = folder.put("t", text);
    TextChunks chunks(path, 16 + random() % 200);
    std::string all, chunk;
    while (chunks.next(chunk)) {
      EXPECT_FALSE(chunk.empty());
      all += chunk;
      EXPECT_EQ(chunks.position(), all.size());
    }
    ASSERT_EQ(all, text);
  }
}

TEST(Hash64, PublishedValues) {
  EXPECT_EQ(hash64(""), 0xef46db3751d8e999u);
  EXPECT_EQ(hash64("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(hash64("abc"), 0x44bc2cf5ad770999u);
  const std::string text = "The quick brown fox jumps over the lazy dog, twice over the dog.";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Hash64 hash;
    hash.update(std::string_view(text).substr(0, cut));
    hash.update(std::string_view(text).substr(cut));
    EXPECT_EQ(hash.digest(), hash64(text));
  }
}

}  // namespace
}  // namespace diffattn::io
