// SPDX-License-Identifier: Apache-2.0
#include "io/manifest.h"

#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  io::Manifest manifest;
  if (!fuzz::accepted(
          [&] { manifest = io::Manifest::parse(fuzz::text_of(data, size), "manifest.json"); })) {
    return 0;
  }
  for (const io::Manifest::Entry& entry : manifest.entries) {
    fuzz::expect(!entry.path.starts_with("../") && !entry.path.starts_with("/"),
                 "no path leaves the folder");
  }
  const io::Manifest again = io::Manifest::parse(manifest.to_json(), "again.json");
  fuzz::expect(again == manifest, "a written manifest reads back unchanged");
  return 0;
}
