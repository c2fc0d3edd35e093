// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "tests/io/test_files.h"

// Access to the files of tools/make_tokenizer_data.py in tests/fixtures/tokenizer.

namespace diffattn::io::testing {

inline std::string data_file(const std::string& name) {
  return std::string(DIFFATTN_TEST_DATA) + "/tokenizer/" + name;
}

inline nlohmann::json data_json(const std::string& name) {
  return nlohmann::json::parse(slurp(data_file(name)));
}

inline const std::vector<std::string>& styles() {
  static const std::vector<std::string> names = {"gpt2",  "gpt2_flags", "llama3", "qwen2",
                                                 "o200k", "digits",     "llama2", "metaspace"};
  return names;
}

inline const std::vector<std::string>& reference_strings() {
  static const std::vector<std::string> strings = data_json("strings.json");
  return strings;
}

/// Returns the expected ids of every reference string.
inline std::vector<std::vector<TokenId>> reference_ids(const std::string& style) {
  std::ifstream in(data_file(style + ".ids"));
  std::vector<std::vector<TokenId>> all;
  for (std::string line; std::getline(in, line);) {
    std::istringstream numbers(line);
    all.emplace_back();
    for (TokenId id; numbers >> id;) all.back().push_back(id);
  }
  return all;
}

}  // namespace diffattn::io::testing
