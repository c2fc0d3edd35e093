// SPDX-License-Identifier: Apache-2.0
//
// diffattn info --model: what a model folder holds, before anything is loaded.

#include "apps/diffattn/info_model.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <map>

#include "apps/diffattn/terminal/print.h"
#include "diffattn/io/json.h"
#include "diffattn/models/model_config.h"
#include "io/safetensors/sharded.h"
#include "nn/models/layer_kinds.h"

namespace diffattn::app {
namespace {

using nn::LayerKind;

std::string bytes_text(double bytes) {
  for (const char* unit : {"bytes", "KiB", "MiB"}) {
    if (bytes < 1024.0) return fmt::format("{:.{}f} {}", bytes, unit[0] == 'b' ? 0 : 1, unit);
    bytes /= 1024.0;
  }
  return fmt::format("{:.1f} GiB", bytes);
}

/// The bytes that generation keeps for one sequence.
struct CacheBytes {
  int64_t fixed = 0;      // windows and states
  int64_t per_token = 0;  // keys and values of layers that see every token
};

CacheBytes cache_bytes(const nn::ModelConfig& c, int64_t element) {
  constexpr int64_t kFloat = 4;  // the state of a scan is float32
  const int64_t row = 2 * c.num_key_value_heads * c.head_dim * element;
  const int64_t inner = c.mamba_expand * c.hidden_size;
  CacheBytes bytes;
  for (const LayerKind kind : nn::layer_kinds(c)) {
    switch (kind) {
      case LayerKind::kAttention:
      case LayerKind::kOwnerAttention: bytes.per_token += row; break;
      case LayerKind::kWindowAttention: bytes.fixed += (c.sliding_window - 1) * row; break;
      case LayerKind::kMamba:
      case LayerKind::kMambaMemory:
        bytes.fixed += inner * (c.mamba_d_state * kFloat + (c.mamba_d_conv - 1) * element);
        break;
      case LayerKind::kReaderAttention:
      case LayerKind::kGatedMemory: break;
    }
  }
  return bytes;
}

Json layers_json(const nn::ModelConfig& config) {
  std::map<LayerKind, std::vector<size_t>> layers;
  const auto kinds = nn::layer_kinds(config);
  for (size_t i = 0; i < kinds.size(); ++i) layers[kinds[i]].push_back(i);
  Json out = Json::array();
  for (const auto& [kind, indices] : layers) {
    out.push_back({{"kind", nn::layer_kind_text(kind)}, {"layers", indices}});
  }
  return out;
}

/// Returns e.g. "0, 2, 4" or "0 to 31".
std::string indices_text(const std::vector<size_t>& indices) {
  const bool all = indices.back() - indices.front() + 1 == indices.size() && indices.size() > 2;
  return all ? fmt::format("{} to {}", indices.front(), indices.back())
             : fmt::format("{}", fmt::join(indices, ", "));
}

}  // namespace

Json model_info(const std::string& folder) {
  const nn::ModelConfig config = models::read_model_config(folder);
  const auto weights = io::ShardedReader::open(folder);
  std::map<std::string, int64_t> types;
  int64_t parameters = 0, bytes = 0;
  for (const std::string& name : weights.names()) {
    const io::TensorInfo& info = weights.at(name);
    int64_t elements = 1;
    for (const int64_t size : info.shape) elements *= size;
    parameters += elements;
    bytes += static_cast<int64_t>(info.bytes());
    types[std::string(io::dtype_name(info.dtype))] += elements;
  }
  const auto json = io::read_json(folder + "/config.json");
  Json out{
      {"folder", folder},
      {"model_type", io::JsonValue(json, folder + "/config.json").at("model_type").to_string()},
      {"attention", config.attention},
      {"parameters", parameters},
      {"weights", {{"bytes", bytes}, {"tensors", weights.names().size()}, {"types", types}}},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"max_position_embeddings", config.max_position_embeddings}};
  if (config.kind != nn::ModelKind::kDecoder) return out;
  out["layers"] = layers_json(config);
  for (const auto& [name, element] : {std::pair("float32", 4), std::pair("bfloat16", 2)}) {
    const CacheBytes cache = cache_bytes(config, element);
    out["needs"][name] = {{"weight_bytes", parameters * element},
                          {"cache_bytes_per_sequence", cache.fixed},
                          {"cache_bytes_per_token", cache.per_token}};
  }
  return out;
}

void print_model_info(const Json& info) {
  const auto row = [](const char* name, const std::string& text) {
    print_out("  {:<10} {}\n", name, text);
  };
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  const auto number = [](const Json& value) { return value.get<double>(); };
  print_out("{}\n", text(info["folder"]));
  row("type", fmt::format("{}, attention {}", text(info["model_type"]), text(info["attention"])));
  std::string types;
  for (const auto& item : info["weights"]["types"].items()) {
    types += (types.empty() ? "" : ", ") + item.key();
  }
  row("weights",
      fmt::format("{:.4g} million parameters in {} tensors, {} ({})",
                  number(info["parameters"]) / 1e6, info["weights"]["tensors"].get<int64_t>(),
                  bytes_text(number(info["weights"]["bytes"])), types));
  row("sizes", fmt::format("width {}, vocabulary {}, up to {} tokens",
                           info["hidden_size"].get<int64_t>(), info["vocab_size"].get<int64_t>(),
                           info["max_position_embeddings"].get<int64_t>()));
  if (!info.contains("layers")) return;
  for (const Json& kind : info["layers"]) {
    row("layers", fmt::format("{}: {}", indices_text(kind["layers"].get<std::vector<size_t>>()),
                              text(kind["kind"])));
  }
  for (const auto& item : info["needs"].items()) {
    row(item.key().c_str(),
        fmt::format("{} of weights, {} of cache per sequence and {} per token",
                    bytes_text(number(item.value()["weight_bytes"])),
                    bytes_text(number(item.value()["cache_bytes_per_sequence"])),
                    bytes_text(number(item.value()["cache_bytes_per_token"]))));
  }
}

}  // namespace diffattn::app
