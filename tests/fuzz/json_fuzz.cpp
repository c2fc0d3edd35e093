// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "diffattn/io/json.h"
#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  nlohmann::json document;
  if (!fuzz::accepted([&] { document = io::parse_json(text, "fuzz.json"); })) return 0;
  const nlohmann::json again = io::parse_json(document.dump(), "again.json");
  fuzz::expect(again == document, "a written document parses to the same values");

  const io::JsonValue value(document, "fuzz.json");
  fuzz::accepted([&] { value.to_int(-5, 5); });
  fuzz::accepted([&] { value.to_uint(1, 9); });
  fuzz::accepted([&] { value.to_double(0, 1); });
  fuzz::accepted([&] { value.to_string(8); });
  fuzz::accepted([&] {
    for (const std::string& key : value.keys()) value.at(key).to_bool();
  });
  fuzz::accepted([&] {
    for (size_t i = 0; i <= value.size(); ++i) value.at(i).find("a");
  });
  return 0;
}
