// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "diffattn/train/task_data.h"

namespace diffattn::train {

/// Returns the generated examples of `generator`.
std::unique_ptr<TaskData> generate_example_data(std::shared_ptr<const data::ExampleTask> generator,
                                                const RunConfig& config);

/// Reads the texts and classes, or the documents and summaries, of data.train and data.valid.
/// Throws io::Error, and ConfigError if summaries need a tokenizer with an end-of-text token.
std::unique_ptr<TaskData> read_example_data(const RunConfig& config,
                                            const io::Tokenizer& tokenizer);

}  // namespace diffattn::train
