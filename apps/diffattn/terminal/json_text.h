// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace diffattn::app {

/// The JSON that the verbs print; keys keep their order.
using Json = nlohmann::ordered_json;

/// Returns JSON as text, on one line for indent -1. Bytes that are not UTF-8, as file names,
/// prompts and tokens may have, become U+FFFD.
inline std::string json_text(const Json& json, int indent = 2) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace diffattn::app
