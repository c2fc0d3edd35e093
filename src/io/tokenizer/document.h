// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace diffattn::io {

/// A parsed tokenizer.json. The two large tables are vectors, not JSON values, which keeps memory
/// near the size of the file. Each entry has its byte offset in the file, for messages.
struct TokenizerDocument {
  struct VocabularyEntry {
    std::string token;
    uint64_t id;
    uint64_t offset;
  };
  struct MergeEntry {
    std::string first, second;
    uint64_t offset;
  };

  nlohmann::json rest;  // everything else; its `model` has no entries of `vocab` and `merges`
  std::vector<VocabularyEntry> vocabulary;
  std::vector<MergeEntry> merges;
  bool has_vocabulary = false;
  bool has_merges = false;
};

/// Throws Error if parse_json() would, and for malformed tables.
TokenizerDocument parse_tokenizer_document(std::string_view text, const std::string& file);

}  // namespace diffattn::io
