// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/numbers.h"
#include "diffattn/convert/convert.h"
#include "diffattn/io/file.h"
#include "io/safetensors/sharded.h"
#include "tests/io/test_files.h"

namespace diffattn::convert::testing {

using io::Dtype;
using io::testing::TempFolder;
using nlohmann::json;

/// Returns the config.json of a model with 2 layers, 6 sub-heads (3 heads) and 2 kv sub-heads (1 kv
/// head) of width 4.
inline json small_config(const std::string& type, const std::string& attention = "") {
  json config{{"model_type", type},     {"hidden_size", 12},        {"intermediate_size", 8},
              {"num_hidden_layers", 2}, {"num_attention_heads", 6}, {"num_key_value_heads", 2},
              {"head_dim", 4},          {"vocab_size", 10},         {"rms_norm_eps", 1e-5},
              {"rope_theta", 10000.0}};
  if (!attention.empty()) config["attention"] = attention;
  return config;
}

using Values = std::function<double(int64_t)>;

/// Tensors by name, each with its shape and the value of every element.
struct Weights {
  std::map<std::string, std::pair<std::vector<int64_t>, Values>> tensors;
  Dtype dtype = Dtype::kF32;

  void set(const std::string& name, std::vector<int64_t> shape, Values values) {
    tensors[name] = {std::move(shape), std::move(values)};
  }
  void write(const std::string& folder) const {
    std::vector<io::TensorSpec> specs;
    for (const auto& [name, tensor] : tensors) specs.push_back({name, dtype, tensor.first});
    io::SafetensorsWriter writer(folder + "/model.safetensors", specs, {{"format", "pt"}});
    for (const auto& [name, tensor] : tensors) {
      int64_t count = 1;
      for (const int64_t size : tensor.first) count *= size;
      std::vector<std::byte> data(static_cast<size_t>(count) * bytes_of(dtype));
      for (int64_t i = 0; i < count; ++i) {
        store_number(dtype, tensor.second(i),
                     data.data() + static_cast<size_t>(i) * bytes_of(dtype));
      }
      writer.write(name, data);
    }
    writer.commit();
  }
};

/// Returns the position of an element as its value, so that a test can see where it went.
inline double position(int64_t i) { return static_cast<double>(i); }

inline Weights rest_of(const json& c) {
  const auto number = [&](const char* key) { return c.at(key).get<int64_t>(); };
  const int64_t hidden = number("hidden_size"), wide = number("intermediate_size");
  Weights w;
  w.set("model.embed_tokens.weight", {number("vocab_size"), hidden}, position);
  w.set("lm_head.weight", {number("vocab_size"), hidden}, position);
  w.set("model.norm.weight", {hidden}, position);
  for (int64_t layer = 0; layer < number("num_hidden_layers"); ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    w.set(prefix + "input_layernorm.weight", {hidden}, [](int64_t) { return 1.0; });
    w.set(prefix + "post_attention_layernorm.weight", {hidden}, position);
    w.set(prefix + "mlp.gate_proj.weight", {wide, hidden}, position);
    w.set(prefix + "mlp.up_proj.weight", {wide, hidden}, position);
    w.set(prefix + "mlp.down_proj.weight", {hidden, wide}, position);
  }
  return w;
}

/// Returns the weights of a Microsoft V1 model (with out_proj and a weight of the head norm), a
/// DiffLlama or a Llama (without lambda).
inline Weights weights_of(const json& c) {
  const auto number = [&](const char* key) { return c.at(key).get<int64_t>(); };
  const bool microsoft = c.contains("attention"), llama = c.at("model_type") == "llama";
  const int64_t hidden = number("hidden_size"), d = number("head_dim"),
                q = d * number("num_attention_heads"), kv = d * number("num_key_value_heads");
  Weights w = rest_of(c);
  for (int64_t layer = 0; layer < number("num_hidden_layers"); ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    w.set(prefix + "q_proj.weight", {q, hidden}, position);
    w.set(prefix + "k_proj.weight", {kv, hidden}, position);
    w.set(prefix + "v_proj.weight", {kv, hidden}, position);
    w.set(prefix + (microsoft ? "out_proj.weight" : "o_proj.weight"), {hidden, q}, position);
    if (llama) continue;
    for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
      w.set(prefix + name, {d}, position);
    }
    if (microsoft) w.set(prefix + "subln.weight", {2 * d}, [](int64_t) { return 1.0; });
  }
  return w;
}

/// Writes a model folder to folder/name.
inline std::string put_model(const TempFolder& folder, const std::string& name, const json& config,
                             const Weights& weights) {
  std::filesystem::create_directory(folder / name);
  folder.put(name + "/config.json", config.dump(2));
  weights.write(folder / name);
  return folder / name;
}

inline Options to(Format format) {
  Options options;
  options.to = format;
  return options;
}

inline std::vector<double> numbers(const std::string& folder, const std::string& name) {
  return numbers_of(io::ShardedReader::open(folder), name);
}

inline json config_of(const std::string& folder) {
  return json::parse(io::testing::slurp(folder + "/config.json"));
}

}  // namespace diffattn::convert::testing
