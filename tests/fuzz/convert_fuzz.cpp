// SPDX-License-Identifier: Apache-2.0
//
// The input is a JSON document {"to": format, "options": [...], "config": document,
// "tensors": {name: [dtype, [sizes]]}} that describes a model folder and a conversion.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "diffattn/convert/convert.h"
#include "io/safetensors/sharded.h"
#include "tests/fuzz/folder_input.h"
#include "tests/fuzz/fuzz.h"

using namespace diffattn;
using nlohmann::json;

namespace {

constexpr uint64_t kMaxTensorBytes = 64 << 10;

/// Writes the tensors that can be written. Elements count up from 0, in bytes.
void put_tensors(const json& tensors, const std::string& folder) {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, description] : tensors.items()) {
    io::TensorSpec spec{name, io::Dtype::kF32, {}};
    if (!description.is_array() || description.size() != 2 || !description[0].is_string()) continue;
    const auto dtype = io::parse_dtype(description[0].get<std::string>());
    if (!dtype || !description[1].is_array()) continue;
    spec.dtype = *dtype;
    for (const json& size : description[1]) {
      spec.shape.push_back(size.is_number_unsigned() ? size.get<int64_t>() : -1);
    }
    uint64_t bytes = 0;
    if (!fuzz::accepted([&] { bytes = io::tensor_bytes(spec, "fuzz"); })) continue;
    if (bytes <= kMaxTensorBytes) specs.push_back(std::move(spec));
  }
  fuzz::accepted([&] {
    io::SafetensorsWriter writer(folder + "/model.safetensors", specs);
    for (const io::TensorSpec& spec : specs) {
      std::vector<std::byte> data(io::tensor_bytes(spec, "fuzz"));
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i % 64);
      writer.write(spec.name, data);
    }
    writer.commit();
  });
}

convert::Options options_of(const json& input) {
  convert::Options options;
  options.max_shard_bytes = 4096;
  if (!input.contains("options") || !input["options"].is_array()) return options;
  for (const json& item : input["options"]) {
    if (item == "attention_only") options.attention_only = true;
    if (item == "legacy_naive") options.pairing = GqaPairing::kLegacyNaive;
    if (item == "dry_run") options.dry_run = true;
    if (item == "rename") options.renames = {{"model.", "m."}};
    if (item.is_string()) options.from = convert::parse_format(item.get<std::string>());
  }
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFolder source, target;
  const json input = json::parse(data, data + size, nullptr, false);
  if (!input.is_object()) return 0;
  source.clear();
  target.clear();
  if (input.contains("config")) source.put("config.json", fuzz::written(input["config"]));
  if (input.contains("tensors") && input["tensors"].is_object()) {
    put_tensors(input["tensors"], source.path());
  }
  source.put("tokenizer.json", "{}");

  convert::Options options = options_of(input);
  const std::string to = input.contains("to") ? fuzz::written(input["to"]) : "diffllama";
  options.to = convert::parse_format(to).value_or(convert::Format::kDiffLlama);
  fuzz::accepted([&] {
    const std::string folder = target.path() + "/out";
    const convert::Report report = convert::convert(source.path(), folder, options);
    if (options.dry_run) return;
    const io::ShardedReader written = io::ShardedReader::open(folder);
    for (const convert::TensorReport& tensor : report.tensors) {
      written.require(tensor.tensor.name, tensor.tensor.dtype, tensor.tensor.shape);
    }
  });
  return 0;
}
