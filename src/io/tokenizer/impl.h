// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/added_vocabulary.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/decoder.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/pre_tokenizer.h"

// The parts of a Tokenizer.

namespace diffattn::io {

struct Tokenizer::Impl {
  /// Parses a tokenizer.json. Throws Error; file is only used for messages.
  static std::shared_ptr<const Impl> parse(std::string_view json, const std::string& file);
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::string to_json() const;
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids) const;
  void encode_words(std::string_view piece, bool first, std::vector<TokenId>& ids) const;

  nlohmann::json sections;     // the file without vocab, merges and added_tokens
  Vocabulary vocabulary;       // tokens of model.vocab and added tokens
  size_t model_tokens = 0;     // number of tokens in model.vocab
  std::vector<bool> in_model;  // by id: true for tokens in model.vocab
  std::vector<Merge> merges;
  std::vector<AddedToken> added;        // in file order
  std::vector<bool> special;            // by id
  std::vector<TokenId> prefix, suffix;  // tokens that the post-processor adds
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::optional<Bpe> bpe;
  Decoder decoder;
  std::vector<std::string> pieces;  // Decoder::piece_of() of each id
  TokenFinder raw_tokens, normalized_tokens;
  // Without a pre-tokenizer, the whole text is one word. If no merge joins a token with a following
  // marker (U+2581), we may still split the text before each marker; empty if not.
  std::string cut_marker;
};

}  // namespace diffattn::io
