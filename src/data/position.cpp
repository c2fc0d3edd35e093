// SPDX-License-Identifier: Apache-2.0
#include "data/position.h"

#include <nlohmann/json.hpp>

#include "diffattn/io/error.h"
#include "diffattn/io/json.h"

namespace diffattn::data {
namespace {

constexpr char kName[] = "data position";

}  // namespace

std::string write_position(std::string_view kind, const std::vector<PositionField>& place,
                           const std::vector<PositionField>& identity) {
  nlohmann::json document = {{"kind", kind}};
  for (const PositionField& field : place) document[std::string(field.name)] = field.value;
  for (const PositionField& field : identity) document[std::string(field.name)] = field.value;
  return document.dump();
}

std::vector<uint64_t> read_position(std::string_view text, std::string_view kind,
                                    std::initializer_list<std::string_view> place,
                                    const std::vector<PositionField>& identity) {
  const nlohmann::json document = io::parse_json(text, kName);
  const io::JsonValue root(document, kName);
  if (root.at("kind").to_string() != kind) root.at("kind").fail(std::string(kind));
  for (const PositionField& field : identity) {
    const uint64_t was = root.at(field.name).to_uint();
    if (was != field.value) {
      throw io::Error(kName, "key '" + std::string(field.name) + "': expected " +
                                 std::to_string(was) + " as in the checkpoint, got " +
                                 std::to_string(field.value) +
                                 "; resume a run with the data and settings of its beginning");
    }
  }
  std::vector<uint64_t> values;
  for (const std::string_view name : place) values.push_back(root.at(name).to_uint());
  return values;
}

}  // namespace diffattn::data
