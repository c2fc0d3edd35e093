// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// PRIVATE header of the io layer.

namespace diffattn::io {

/// A tokenizer.json taken apart. The two large tables go straight into vectors, which keeps memory
/// near the size of the file, and know where in the file each entry is.
struct TokenizerDocument {
  struct VocabularyEntry {
    std::string token;
    std::uint64_t id;
    std::uint64_t offset;
  };
  struct MergeEntry {
    std::string first, second;
    std::uint64_t offset;
  };

  nlohmann::json rest;  // everything else; `model` is there without `vocab` and `merges`
  std::vector<VocabularyEntry> vocabulary;
  std::vector<MergeEntry> merges;
  bool has_vocabulary = false;
  bool has_merges = false;
};

/// Throws Error for what parse_json() refuses, and for tables of another form.
TokenizerDocument parse_tokenizer_document(std::string_view text, const std::string& file);

}  // namespace diffattn::io
