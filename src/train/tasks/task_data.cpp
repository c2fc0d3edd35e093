// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/task_data.h"

#include "train/language_data.h"
#include "train/new_model.h"
#include "train/sections.h"
#include "train/tasks/example_data.h"
#include "train/tasks/sequence_data.h"

namespace diffattn::train {
namespace {

/// Sets model.vocab_size to `size` if it is open, checks it otherwise, and resolves the config.
void set_vocabulary(RunConfig& config, int64_t size, const std::string& owner) {
  if (config.model.vocab_size == 0) config.model.vocab_size = size;
  if (config.model.vocab_size < size) {
    throw ConfigError("model.vocab_size: expected at least " + std::to_string(size) +
                      ", which the " + owner + " has, got " +
                      std::to_string(config.model.vocab_size));
  }
  config.resolve();
}

/// Returns the data of a task that reads no file, or null.
std::unique_ptr<TaskData> generate_task_data(RunConfig& config) {
  if (const auto generator = sequence_task(config)) {
    set_vocabulary(config, generator->vocab_size(), "generated task");
    return generate_sequence_data(config);
  }
  if (!config.data.train.empty() || config.task == Task::kLanguageModel) return nullptr;
  const std::shared_ptr<const data::ExampleTask> generator =
      with_section(task_name(config.task), [&] {
        return config.task == Task::kClassify ? data::noisy_text_task(config.classify.text)
                                              : data::select_task(config.summarize.select);
      });
  set_vocabulary(config, generator->vocab_size(), "generated task");
  return generate_example_data(generator, config);
}

nn::ModelConfig classifier_config(const RunConfig& config, const TaskData& data) {
  nn::ModelConfig c = model_config_of(config);
  c.kind =
      config.classify.backbone == "encoder" ? nn::ModelKind::kEncoder : nn::ModelKind::kDecoder;
  c.labels = data.labels;
  c.classifier_pooling = config.classify.pooling;
  c.classifier_dropout = config.classify.dropout;
  c.classifier_hidden_size = config.classify.head_size;
  return c;
}

nn::ModelConfig summarizer_config(const RunConfig& config, const TaskData& data) {
  nn::ModelConfig c = model_config_of(config);
  c.kind = nn::ModelKind::kEncoderDecoder;
  c.num_encoder_layers = config.model.num_hidden_layers;
  if (config.summarize.decoder_layers > 0) c.num_hidden_layers = config.summarize.decoder_layers;
  c.decoder_start_token_id = data.begin_token;
  c.eos_token_id = data.end_token;
  return c;
}

}  // namespace

std::shared_ptr<const data::SequenceTask> sequence_task(const RunConfig& config) {
  if (config.task != Task::kNeedle && config.task != Task::kRecall) return nullptr;
  return with_section(task_name(config.task), [&] {
    return config.task == Task::kNeedle ? data::needle_task(config.needle)
                                        : data::recall_task(config.recall);
  });
}

std::unique_ptr<TaskData> open_task_data(RunConfig& config) {
  take_sizes_of_folder(config);
  if (auto generated = generate_task_data(config)) return generated;
  const io::Tokenizer tokenizer = tokenizer_for(config);
  set_vocabulary(config, static_cast<int64_t>(tokenizer.vocab_size()), "tokenizer");
  if (config.task == Task::kLanguageModel) return read_language_data(config, tokenizer);
  return read_example_data(config, tokenizer);
}

std::shared_ptr<TaskModel> new_task_model(const RunConfig& config, const TaskData& data) {
  torch::manual_seed(static_cast<uint64_t>(config.seed));
  if (config.task == Task::kClassify) {
    return classifier_model(Classifier(classifier_config(config, data)), data.class_weights);
  }
  if (config.task == Task::kSummarize) {
    return summarizer_model(nn::EncoderDecoder(summarizer_config(config, data)));
  }
  return language_model(new_model(config));
}

}  // namespace diffattn::train
