// SPDX-License-Identifier: Apache-2.0
#include "train/language_data.h"

#include <utility>

#include "train/tasks/row_options.h"

namespace diffattn::train {
namespace {

class LanguageData final : public TaskData {
 public:
  LanguageData(const RunConfig& config, std::pair<data::Corpus, data::Corpus> parts)
      : options_(row_options(config)),
        train_(std::move(parts.first)),
        valid_(std::move(parts.second)) {
    train_tokens = static_cast<int64_t>(train_.tokens());
  }

  std::unique_ptr<BatchSource> train_batches() const override {
    return std::make_unique<CorpusBatches>(train_, options_);
  }
  std::unique_ptr<BatchSource> valid_batches() const override {
    if (!valid_.has_labels()) return nullptr;
    data::RowOptions options = options_;
    options.shuffle = false;
    return std::make_unique<CorpusBatches>(valid_, options);
  }

 private:
  data::RowOptions options_;
  data::Corpus train_, valid_;
};

}  // namespace

io::Tokenizer tokenizer_for(const RunConfig& config) {
  const std::string& name = config.data.tokenizer;
  return name == "bytes" ? io::Tokenizer::bytes() : io::Tokenizer::read(name);
}

std::unique_ptr<TaskData> read_language_data(const RunConfig& config,
                                             const io::Tokenizer& tokenizer) {
  if (config.data.train.empty()) {
    throw ConfigError(
        "data.train: expected a text file, folder, JSONL file or token file, got nothing");
  }
  data::ReadOptions options;
  options.skip_bad = config.data.skip_bad;
  data::ReadReport report;
  const data::Corpus train = data::read_corpus(config.data.train, tokenizer, options, &report);
  uint64_t skipped = report.skipped;
  std::vector<std::string> skipped_files = report.skipped_files;
  const auto parts = [&]() -> std::pair<data::Corpus, data::Corpus> {
    if (config.data.valid.empty()) {
      return train.split(config.data.valid_fraction, static_cast<uint64_t>(config.seed));
    }
    const data::Corpus valid = data::read_corpus(config.data.valid, tokenizer, options, &report);
    skipped += report.skipped;
    skipped_files.insert(skipped_files.end(), report.skipped_files.begin(),
                         report.skipped_files.end());
    return {train, valid};
  };
  auto result = std::make_unique<LanguageData>(config, parts());
  result->tokenizer = tokenizer;
  result->skipped_lines = skipped;
  result->skipped_files = std::move(skipped_files);
  return result;
}

}  // namespace diffattn::train
