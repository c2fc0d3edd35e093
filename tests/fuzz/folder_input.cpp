// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/folder_input.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace diffattn::fuzz {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxData = 64 << 10;

uint64_t declared_data(const json& header) {
  uint64_t end = 0;
  for (const json& tensor : header) {
    if (!tensor.is_object() || !tensor.contains("data_offsets")) continue;
    const json& offsets = tensor["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[1].is_number_unsigned()) continue;
    end = std::max(end, std::min(kMaxData, offsets[1].get<uint64_t>()));
  }
  return end;
}

}  // namespace

std::string written(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void put_weights(const json& files, MemoryFolder& folder) {
  if (!files.is_object()) return;
  for (const auto& [name, header] : files.items()) {
    std::string content = written(header);
    if (header.is_object()) {
      std::string length(8, '\0');
      for (size_t i = 0; i < 8; ++i) {
        length[i] = static_cast<char>(uint64_t{content.size()} >> (8 * i));
      }
      content = length + content + std::string(declared_data(header), '\0');
    }
    folder.put(name, content);
  }
}

}  // namespace diffattn::fuzz
