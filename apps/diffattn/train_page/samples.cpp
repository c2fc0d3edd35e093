// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/train_page/samples.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "diffattn/io/file.h"
#include "diffattn/nn/generate.h"

namespace diffattn::app {
namespace {

using nlohmann::json;

constexpr int64_t kSampleTokens = 48;
constexpr uint64_t kMostSampleBytes = uint64_t{1} << 30;

}  // namespace

std::vector<std::string> prompts_of(const std::string& lines) {
  std::vector<std::string> prompts;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) prompts.push_back(line);
  }
  return prompts;
}

std::vector<Sample> write_samples(train::TaskModel& model, const io::Tokenizer& tokenizer,
                                  const std::vector<std::string>& prompts, int64_t step) {
  const auto decoder = std::dynamic_pointer_cast<nn::CausalLMImpl>(model.module());
  if (!decoder) return {};
  decoder->eval();
  const auto tokens = std::min(kSampleTokens, decoder->config.max_position_embeddings / 2);
  std::vector<Sample> samples;
  for (const std::string& prompt : prompts) {
    std::vector<int64_t> ids;
    for (const io::TokenId id : tokenizer.encode(prompt)) ids.push_back(id);
    const auto most = static_cast<size_t>(decoder->config.max_position_embeddings - tokens);
    if (ids.empty() || ids.size() > most) {
      samples.push_back({step, prompt, ids.empty() ? "" : "(the prompt is too long)"});
      continue;
    }
    nn::SamplingOptions options;
    options.max_new_tokens(tokens);
    if (const auto end = tokenizer.end_of_text()) options.stop_tokens({static_cast<int64_t>(*end)});
    const auto written = nn::generate(*decoder, {ids}, options).front();
    const std::vector<io::TokenId> text(written.begin(), written.end());
    samples.push_back({step, prompt, tokenizer.decode(text)});
  }
  return samples;
}

SampleLog::SampleLog(const std::string& folder, int64_t step) : path_(folder + "/samples.jsonl") {
  if (!std::filesystem::exists(path_)) return;
  std::istringstream lines(io::read_text(path_, kMostSampleBytes));
  for (std::string line; std::getline(lines, line);) {
    const json sample = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!sample.is_object() || sample.value("step", step + 1) > step) continue;
    samples_.push_back({sample["step"], sample.value("prompt", std::string()),
                        sample.value("text", std::string())});
  }
}

void SampleLog::add(const std::vector<Sample>& samples) {
  samples_.insert(samples_.end(), samples.begin(), samples.end());
  std::string lines;
  for (const Sample& sample : samples_) {
    const json line{{"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}};
    lines += line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  }
  io::write_text(path_, lines);
}

}  // namespace diffattn::app
