// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/bpe.h"

namespace diffattn::io {

/// The content of a tokenizer.json.
struct TokenizerContent {
  const nlohmann::json& sections;  // all but added_tokens, model.vocab and model.merges
  const Vocabulary& vocabulary;
  const std::vector<bool>& in_model;  // by id: true for tokens in model.vocab
  const std::vector<Merge>& merges;
  const std::vector<AddedToken>& added;
};

std::string write_tokenizer_json(const TokenizerContent& content);

/// Returns the sections of a byte-level tokenizer with this normalizer and pre-tokenizer.
nlohmann::json byte_level_sections(nlohmann::json normalizer, nlohmann::json pre_tokenizer);

/// Returns a `ByteLevel` step that only converts to the byte alphabet.
nlohmann::json byte_level_step();

}  // namespace diffattn::io
