// SPDX-License-Identifier: Apache-2.0
//
// The input is a JSON document {"index": document, "files": {name: header}} that describes a model
// folder: the index, and safetensors files with these headers and as much data as they declare.

#include <nlohmann/json.hpp>

#include "io/safetensors/sharded.h"
#include "tests/fuzz/folder_input.h"
#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFolder folder;
  const auto input = nlohmann::json::parse(data, data + size, nullptr, false);
  if (!input.is_object()) return 0;
  folder.clear();
  if (input.contains("index")) folder.put(io::kModelIndexFile, fuzz::written(input["index"]));
  if (input.contains("files")) fuzz::put_weights(input["files"], folder);
  fuzz::accepted([&] {
    const io::ShardedReader reader = io::ShardedReader::open(folder.path());
    for (const std::string& name : reader.names()) {
      fuzz::expect(reader.find(name) != nullptr, "every tensor is found by its name");
      reader.read_bytes(name);
    }
  });
  return 0;
}
