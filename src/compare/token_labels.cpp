// SPDX-License-Identifier: Apache-2.0
#include "compare/token_labels.h"

namespace diffattn::compare {

std::vector<std::string> token_labels(const std::vector<int64_t>& ids,
                                      const std::optional<io::Tokenizer>& tokenizer) {
  std::vector<std::string> labels;
  std::vector<io::TokenId> pair;  // the token before and the token itself
  for (const int64_t id : ids) {
    std::string label;
    if (tokenizer) {
      // Decoding drops a blank at the front of a text, so we decode the token before as well.
      const std::string before = tokenizer->decode_bytes(pair, false);
      pair.push_back(static_cast<io::TokenId>(id));
      const std::string both = tokenizer->decode_bytes(pair, false);
      label = both.starts_with(before) ? both.substr(before.size())
                                       : tokenizer->decode_bytes({&pair.back(), 1}, false);
      if (pair.size() > 1) pair.erase(pair.begin());
    }
    labels.push_back(label.empty() ? std::to_string(id) : label);
  }
  return labels;
}

}  // namespace diffattn::compare
