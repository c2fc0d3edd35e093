// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "io/stop_text.h"
#include "python/src/model.h"

namespace diffattn::python {
namespace {

using Json = nlohmann::json;

nn::SamplingOptions sampling_of(const Json& options, const Ids& stop_tokens) {
  return nn::SamplingOptions()
      .max_new_tokens(options.at("max_new_tokens"))
      .temperature(options.at("temperature"))
      .top_k(options.at("top_k"))
      .top_p(options.at("top_p"))
      .repetition_penalty(options.at("repetition_penalty"))
      .presence_penalty(options.at("presence_penalty"))
      .frequency_penalty(options.at("frequency_penalty"))
      .seed(options.at("seed"))
      .stop_tokens(stop_tokens);
}

/// The continuation of one prompt.
struct Row {
  std::optional<io::StreamDecoder> decoder;  // none without a tokenizer
  io::StopText text;
};

}  // namespace

std::tuple<std::vector<Ids>, std::vector<std::string>> Model::generate(
    const std::vector<Ids>& prompts, const std::string& options, int64_t on_text) {
  const Json parsed = Json::parse(options);
  const auto show = reinterpret_cast<OnText>(on_text);
  std::vector<Row> rows(prompts.size());
  for (Row& row : rows) {
    if (text.found) row.decoder.emplace(*text.found);
    row.text = io::StopText(parsed.at("stop").get<std::vector<std::string>>());
  }
  bool stopped = false;
  const auto take = [&](size_t index, int64_t token) {
    Row& row = rows[index];
    const std::string piece =
        row.decoder ? row.text.push(row.decoder->push(static_cast<io::TokenId>(token))) : "";
    stopped = stopped ||
              (show != nullptr && show(static_cast<int64_t>(index), token, piece.c_str()) != 0);
    return !stopped && !row.text.found();
  };
  const Ids stops =
      parsed.contains("stop_tokens") ? parsed["stop_tokens"].get<Ids>() : stop_tokens();
  const std::lock_guard lock(generating_);
  auto ids = generator_->generate(prompts, sampling_of(parsed, stops), take);
  std::vector<std::string> texts;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].decoder) continue;
    const std::string rest = rows[i].text.finish(rows[i].decoder->finish());
    if (show != nullptr && !rest.empty() && !stopped)
      show(static_cast<int64_t>(i), -1, rest.c_str());
    texts.push_back(rows[i].text.all());
  }
  return {std::move(ids), std::move(texts)};
}

}  // namespace diffattn::python
