// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/tokenizer/added_vocabulary.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/decoder.h"
#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/pre_tokenizer.h"

// PRIVATE header of the io layer: what a Tokenizer is made of.

namespace diffattn::io {

struct Tokenizer::Impl {
  /// Reads and checks a document; file is for messages.
  static std::shared_ptr<const Impl> parse(std::string_view json, const std::string& file);
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::string to_json() const;
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids) const;
  void encode_words(std::string_view piece, bool first, std::vector<TokenId>& ids) const;

  nlohmann::json sections;       // the file without vocab, merges and added_tokens
  Vocabulary vocabulary;         // added tokens included
  std::size_t model_tokens = 0;  // those of model.vocab
  std::vector<bool> in_model;    // by id: in model.vocab
  std::vector<Merge> merges;
  std::vector<AddedToken> added;        // in file order
  std::vector<bool> special;            // by id
  std::vector<TokenId> prefix, suffix;  // of the post-processor
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::optional<Bpe> bpe;
  Decoder decoder;
  std::vector<std::string> pieces;  // what each id decodes to
  TokenFinder raw_tokens, normalized_tokens;
  // Without a pre-tokenizer a text is one word. Where no merge joins anything with a marker behind
  // it, it can be cut before markers all the same.
  std::string cut_marker;
};

}  // namespace diffattn::io
