// SPDX-License-Identifier: Apache-2.0
#include "train/language_data.h"

#include "diffattn/data/tensors.h"

namespace diffattn::train {

io::Tokenizer tokenizer_for(const RunConfig& config) {
  const std::string& name = config.data.tokenizer;
  return name == "bytes" ? io::Tokenizer::bytes() : io::Tokenizer::read(name);
}

Batch CorpusBatches::next() {
  const data::RowBatch rows = rows_.next();
  if (rows.rows == 0) return {};
  const data::PackedTensors packed = data::to_tensors(rows);
  Batch batch;
  batch.ids = packed.ids;
  batch.labels = packed.labels;
  batch.positions = packed.positions;
  batch.mask.cu_seqlens_q(packed.cu_seqlens);
  return batch;
}

LanguageData::LanguageData(const RunConfig& config, const io::Tokenizer& tokenizer)
    : LanguageData(read(config, tokenizer)) {}

LanguageData LanguageData::read(const RunConfig& config, const io::Tokenizer& tokenizer) {
  if (config.data.train.empty()) {
    throw ConfigError("data.train: expected a text file, folder, JSONL or token file, got nothing");
  }
  data::ReadOptions options;
  options.skip_bad = config.data.skip_bad;
  data::ReadReport report;
  const data::Corpus train = data::read_corpus(config.data.train, tokenizer, options, &report);
  uint64_t skipped = report.skipped;
  if (config.data.valid.empty()) {
    return {config, train.split(config.data.valid_fraction, static_cast<uint64_t>(config.seed)),
            skipped};
  }
  const data::Corpus valid = data::read_corpus(config.data.valid, tokenizer, options, &report);
  return {config, {train, valid}, skipped + report.skipped};
}

LanguageData::LanguageData(const RunConfig& config, std::pair<data::Corpus, data::Corpus> parts,
                           uint64_t skipped)
    : train_(std::move(parts.first)), valid_(std::move(parts.second)), skipped_(skipped) {
  options_.seq_len = config.train.seq_len;
  options_.batch_size = config.train.batch_size;
  options_.seed = static_cast<uint64_t>(config.seed);
}

std::unique_ptr<BatchSource> LanguageData::train_batches() const {
  return std::make_unique<CorpusBatches>(train_, options_);
}

std::unique_ptr<BatchSource> LanguageData::valid_batches() const {
  if (valid_.tokens() < 2) return nullptr;
  data::RowOptions options = options_;
  options.shuffle = false;
  return std::make_unique<CorpusBatches>(valid_, options);
}

}  // namespace diffattn::train
