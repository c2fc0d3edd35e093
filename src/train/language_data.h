// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "diffattn/data/corpus.h"
#include "diffattn/data/packed_rows.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/train/task_data.h"

namespace diffattn::train {

/// Returns the tokenizer that data.tokenizer names: "bytes", a tokenizer.json, or a folder with
/// one.
io::Tokenizer tokenizer_for(const RunConfig& config);

/// A corpus as packed batches. At the end of a pass that is not endless, the ids are undefined.
class CorpusBatches final : public BatchSource {
 public:
  CorpusBatches(const data::Corpus& corpus, const data::RowOptions& options)
      : rows_(corpus, options) {}

  Batch next() override { return packed_batch(rows_.next()); }
  std::string position() const override { return rows_.position(); }
  void seek(const std::string& position) override { rows_.seek(position); }

 private:
  data::PackedRows rows_;
};

/// Reads data.train and data.valid, or splits data.valid_fraction off from data.train. Throws
/// io::Error, and ConfigError if data.train is missing.
std::unique_ptr<TaskData> read_language_data(const RunConfig& config,
                                             const io::Tokenizer& tokenizer);

}  // namespace diffattn::train
