// SPDX-License-Identifier: Apache-2.0
#include "io/settings.h"

#include <set>

#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepted([&] {
    std::set<std::string> keys;
    for (const io::Setting& setting : io::parse_settings(fuzz::text_of(data, size), "fuzz.toml")) {
      fuzz::expect(!setting.key.empty() && setting.line > 0, "a setting has a key and a line");
      fuzz::expect(keys.insert(setting.key).second, "every key occurs once");
    }
  });
  return 0;
}
