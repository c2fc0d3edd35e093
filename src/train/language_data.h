// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "diffattn/data/corpus.h"
#include "diffattn/data/packed_rows.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/train/batch.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// The tokenizer that data.tokenizer names: "bytes", a tokenizer.json, or a folder with one.
io::Tokenizer tokenizer_for(const RunConfig& config);

/// Rows of a corpus as packed batches: documents of a row do not see each other.
class CorpusBatches : public BatchSource {
 public:
  CorpusBatches(const data::Corpus& corpus, const data::RowOptions& options)
      : rows_(corpus, options) {}

  /// A batch without ids at the end of a pass that is not endless.
  Batch next() override;
  std::string position() const override { return rows_.position(); }
  void seek(const std::string& position) override { rows_.seek(position); }

 private:
  data::PackedRows rows_;
};

/// Text of a language-model run, read and split.
class LanguageData {
 public:
  /// Reads data.train and data.valid (or splits off data.valid_fraction). Throws io::Error, and
  /// ConfigError when data.train is not given.
  LanguageData(const RunConfig& config, const io::Tokenizer& tokenizer);

  std::unique_ptr<BatchSource> train_batches() const;
  /// Always in the same order; null when there is nothing to validate on.
  std::unique_ptr<BatchSource> valid_batches() const;

  int64_t train_tokens() const { return static_cast<int64_t>(train_.tokens()); }
  int64_t valid_tokens() const { return static_cast<int64_t>(valid_.tokens()); }
  /// Bad lines that data.skip_bad passed over.
  uint64_t skipped_lines() const { return skipped_; }

 private:
  LanguageData(const RunConfig& config, std::pair<data::Corpus, data::Corpus> parts,
               uint64_t skipped);
  static LanguageData read(const RunConfig& config, const io::Tokenizer& tokenizer);

  data::RowOptions options_;
  data::Corpus train_, valid_;
  uint64_t skipped_ = 0;
};

}  // namespace diffattn::train
