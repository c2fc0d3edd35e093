// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tokenizer/bpe.h"
#include "diffattn/io/tokenizer.h"

// PRIVATE header of the io layer.

namespace diffattn::io {

/// What a tokenizer.json is written from.
struct TokenizerContent {
  const nlohmann::json& sections;  // all but added_tokens, model.vocab and model.merges
  const Vocabulary& vocabulary;
  const std::vector<bool>& in_model;  // by id: which tokens are in model.vocab
  const std::vector<Merge>& merges;
  const std::vector<AddedToken>& added;
};

std::string write_tokenizer_json(const TokenizerContent& content);

/// The sections of a byte-level tokenizer that this library makes. pre_tokenizer as in the file.
nlohmann::json byte_level_sections(nlohmann::json normalizer, nlohmann::json pre_tokenizer);

/// `ByteLevel` as a step that changes nothing but the alphabet.
nlohmann::json byte_level_step();

}  // namespace diffattn::io
