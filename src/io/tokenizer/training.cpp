// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <exception>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/tokenizer_training.h"
#include "io/text.h"
#include "io/tokenizer/byte_alphabet.h"
#include "io/tokenizer/pair_merging.h"
#include "io/tokenizer/patterns.h"
#include "io/tokenizer/tokenizer_json.h"
#include "io/tokenizer/word_counts.h"
#include "io/unicode/nfc.h"

namespace diffattn::io {
namespace {

using nlohmann::json;

constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr size_t kMergesPerReport = 64;

Pattern pattern_of(WordPattern pattern) {
  switch (pattern) {
    case WordPattern::kGpt2: return Pattern::kGpt2;
    case WordPattern::kLlama3: return Pattern::kLlama3;
    case WordPattern::kQwen2: return Pattern::kQwen2;
  }
  return Pattern::kLlama3;
}

void count_words(std::string_view text, const TrainingOptions& options, WordCounts& counts) {
  std::string normalized;
  if (options.nfc) {
    normalized = unicode::nfc(text);
    text = normalized;
  }
  const Pattern pattern = pattern_of(options.pattern);
  for (size_t at = 0; at < text.size();) {
    const size_t end = match_end(pattern, text, at);
    counts.add(text.substr(at, end - at));
    at = end;
  }
}

/// The vocabulary during training. Ids go to the special tokens, then to the byte alphabet in the
/// order of code points, then to joined tokens.
class Tokens {
 public:
  explicit Tokens(const std::vector<std::string>& special_tokens) {
    for (const std::string& token : special_tokens) intern(token);
    std::array<uint8_t, 256> bytes;
    for (unsigned byte = 0; byte < 256; ++byte) bytes[byte] = static_cast<uint8_t>(byte);
    std::sort(bytes.begin(), bytes.end(),
              [](uint8_t a, uint8_t b) { return visible_code(a) < visible_code(b); });
    for (const uint8_t byte : bytes) byte_ids[byte] = intern(visible(byte));
  }

  TokenId intern(std::string_view token) {
    const TokenId known = vocabulary.find(token);
    if (known != Vocabulary::kNone) return known;
    const auto id = static_cast<TokenId>(vocabulary.size());
    vocabulary.add(token, id);
    return id;
  }

  Vocabulary vocabulary;
  std::array<TokenId, 256> byte_ids;
};

CountedWords counted_words(const WordCounts& counts, const std::array<TokenId, 256>& byte_ids) {
  CountedWords words;
  counts.for_each([&](std::string_view word, uint64_t count) {
    words.begin.push_back(words.symbols.size());
    words.length.push_back(static_cast<uint32_t>(word.size()));
    words.count.push_back(static_cast<int64_t>(count));
    for (const char byte : word) {
      words.symbols.push_back(byte_ids[static_cast<uint8_t>(byte)]);
    }
  });
  return words;
}

/// Keeps only the last merge of each pair. A pair can be merged twice if two pairs join to the same
/// token.
std::vector<Merge> without_repeats(const std::vector<Merge>& merges) {
  PairMap<uint32_t> last;  // index + 1
  for (uint32_t i = 0; i < merges.size(); ++i) {
    last[last.pair_of(merges[i].first, merges[i].second)] = i + 1;
  }
  std::vector<Merge> kept;
  for (uint32_t i = 0; i < merges.size(); ++i) {
    if (last.find(last.pair_of(merges[i].first, merges[i].second)) == i + 1) {
      kept.push_back(merges[i]);
    }
  }
  return kept;
}

json pre_tokenizer_section(WordPattern pattern) {
  json byte_level = byte_level_step();
  if (pattern == WordPattern::kGpt2) {
    byte_level["use_regex"] = true;
    return byte_level;
  }
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", expression_of(pattern_of(pattern))}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", json::array({split, byte_level})}};
}

}  // namespace

struct TokenizerTrainer::Impl {
  TrainingOptions options;
  WordCounts counts;
};

TokenizerTrainer::TokenizerTrainer(TrainingOptions options)
    : impl_(std::make_unique<Impl>(Impl{std::move(options), {}})) {
  if (impl_->options.threads == 0) {
    impl_->options.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  }
}
TokenizerTrainer::~TokenizerTrainer() = default;
TokenizerTrainer::TokenizerTrainer(TokenizerTrainer&&) noexcept = default;
TokenizerTrainer& TokenizerTrainer::operator=(TokenizerTrainer&&) noexcept = default;

void TokenizerTrainer::add_text(std::string_view text) {
  count_words(text, impl_->options, impl_->counts);
}

void TokenizerTrainer::add_file(const std::string& path, const ProgressCallback& progress) {
  TextChunks chunks(path, kChunkBytes);
  const unsigned threads = impl_->options.threads;
  std::vector<WordCounts> counts(threads);
  std::vector<std::string> texts(threads);
  for (bool more = true; more;) {
    std::vector<std::future<void>> running;
    for (unsigned i = 0; i < threads && (more = chunks.next(texts[i])); ++i) {
      running.push_back(std::async(std::launch::async, count_words, std::string_view(texts[i]),
                                   std::cref(impl_->options), std::ref(counts[i])));
    }
    for (auto& each : running) each.get();
    if (progress) progress({TrainingProgress::Phase::kCount, chunks.position(), chunks.size()});
  }
  for (const WordCounts& each : counts) impl_->counts.add(each);
}

Tokenizer TokenizerTrainer::train(const ProgressCallback& progress) const {
  const TrainingOptions& options = impl_->options;
  Tokens tokens(options.special_tokens);
  Vocabulary& vocabulary = tokens.vocabulary;
  if (options.vocab_size < vocabulary.size() || options.vocab_size > kMaxVocabulary) {
    throw Error("tokenizer training",
                "expected a vocabulary of " + std::to_string(vocabulary.size()) +
                    " (256 bytes and the special tokens) to " + std::to_string(kMaxVocabulary) +
                    " tokens, got " + std::to_string(options.vocab_size));
  }
  size_t rounds = 0;
  const auto report = [&] {
    if (progress) {
      progress({TrainingProgress::Phase::kMerge, vocabulary.size(), options.vocab_size});
    }
  };
  const std::vector<Merge> merges = without_repeats(merge_pairs(
      counted_words(impl_->counts, tokens.byte_ids), options.min_frequency,
      [&](TokenId first, TokenId second) {
        const std::string_view left = vocabulary.token(first), right = vocabulary.token(second);
        if (left.size() + right.size() > kMaxTokenBytes) return Vocabulary::kNone;
        return tokens.intern(std::string(left).append(right));
      },
      [&] {
        if (rounds++ % kMergesPerReport == 0) report();
        return vocabulary.size() < options.vocab_size;
      }));
  report();
  std::vector<AddedToken> added;
  for (const std::string& token : options.special_tokens) {
    added.push_back({.content = token, .id = vocabulary.find(token), .special = true});
  }
  const json normalizer = options.nfc ? json{{"type", "NFC"}} : json(nullptr);
  const json sections = byte_level_sections(normalizer, pre_tokenizer_section(options.pattern));
  const std::vector<bool> in_model(vocabulary.size(), true);
  return Tokenizer::parse(write_tokenizer_json({sections, vocabulary, in_model, merges, added}),
                          "trained tokenizer");
}

}  // namespace diffattn::io
