// SPDX-License-Identifier: Apache-2.0
#include "train/config_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "diffattn/nn/presets.h"
#include "io/text.h"

namespace diffattn::train {
namespace {

constexpr double kHuge = std::numeric_limits<double>::max();
constexpr int64_t kMany = int64_t{1} << 40;
constexpr int64_t kTaskMost = int64_t{1} << 24;

/// Returns the edit distance of two keys, or nothing if they are too different to be a typing
/// error. A correct name in a wrong section still counts as near.
std::optional<size_t> key_distance(const std::string& written, const std::string& known) {
  const KeyParts ours = parts_of(written), theirs = parts_of(known);
  const size_t section = io::edit_distance(ours.section, theirs.section);
  const size_t name = io::edit_distance(ours.name, theirs.name);
  if (name > ours.name.size() / 3) return {};
  if (name > 0 && section + name > written.size() / 3) return {};
  return section + name;
}

[[noreturn]] void fail_unknown(const std::string& key, const std::vector<Field>& known) {
  std::string hint;
  size_t least = std::numeric_limits<size_t>::max();
  for (const Field& field : known) {
    const auto distance = key_distance(key, field.key);
    if (!distance || *distance >= least) continue;
    least = *distance;
    hint = fmt::format("; the nearest is {}", field.key);
  }
  throw ConfigError(fmt::format("{}: no such key{}", key, hint));
}

}  // namespace

std::vector<Field> fields(RunConfig& c) {
  using Texts = Field::Texts;
  auto& m = c.model;
  auto& d = c.data;
  auto& t = c.train;
  return {
      {"task", TaskField{&c.task}},
      {"seed", IntField{&c.seed, 0, std::numeric_limits<int64_t>::max()}},
      {"model.from", TextField{&m.from, {}}},
      {"model.attention", TextField{&m.attention, nn::preset_names()}},
      {"model.vocab_size", IntField{&m.vocab_size, 0, 1 << 24}},
      {"model.hidden_size", IntField{&m.hidden_size, 1, 1 << 20}},
      {"model.intermediate_size", IntField{&m.intermediate_size, 0, 1 << 22}},
      {"model.num_hidden_layers", IntField{&m.num_hidden_layers, 1, 4096}},
      {"model.num_attention_heads", IntField{&m.num_attention_heads, 1, 4096}},
      {"model.num_key_value_heads", IntField{&m.num_key_value_heads, 0, 4096}},
      {"model.head_dim", IntField{&m.head_dim, 0, 1024}},
      {"model.max_position_embeddings", IntField{&m.max_position_embeddings, 0, kMany}},
      {"model.rms_norm_eps", DoubleField{&m.rms_norm_eps, 0.0, 1.0}},
      {"model.rope_theta", DoubleField{&m.rope_theta, 1.0, 1e12}},
      {"model.initializer_range", DoubleField{&m.initializer_range, 0.0, 10.0}},
      {"model.lambda_std_dev", DoubleField{&m.lambda_std_dev, 0.0, 10.0}},
      {"model.tie_word_embeddings", &m.tie_word_embeddings},
      {"model.head_norm", &m.head_norm},
      {"model.lambda_init", DoubleField{&m.lambda_init, -1.0, 10.0}},
      {"data.train", TextField{&d.train, {}}, Texts::kRead},
      {"data.valid", TextField{&d.valid, {}}, Texts::kRead},
      {"data.valid_fraction", DoubleField{&d.valid_fraction, 0.0, 0.5}, Texts::kRead},
      {"data.tokenizer", TextField{&d.tokenizer, {}}, Texts::kRead},
      {"data.skip_bad", &d.skip_bad, Texts::kRead},
      {"needle.length", IntField{&c.needle.length, 2, kTaskMost}},
      {"needle.needles", IntField{&c.needle.needles, 1, kTaskMost}},
      {"needle.min_needles", IntField{&c.needle.min_needles, 0, kTaskMost}},
      {"needle.asked", IntField{&c.needle.asked, 1, kTaskMost}},
      {"needle.questions", IntField{&c.needle.questions, 1, kTaskMost}},
      {"needle.keys", IntField{&c.needle.keys, 1, kTaskMost}},
      {"needle.values", IntField{&c.needle.values, 2, kTaskMost}},
      {"needle.noise", IntField{&c.needle.noise, 1, kTaskMost}},
      {"curriculum.steps", IntField{&c.curriculum.steps, 0, kMany}},
      {"curriculum.length", IntField{&c.curriculum.length, 2, kTaskMost}},
      {"curriculum.growth_steps", IntField{&c.curriculum.growth_steps, 0, kMany}},
      {"recall.pairs", IntField{&c.recall.pairs, 1, kTaskMost}},
      {"recall.distractors", IntField{&c.recall.distractors, 0, kTaskMost}},
      {"recall.questions", IntField{&c.recall.questions, 1, kTaskMost}},
      {"recall.key_parts", IntField{&c.recall.key_parts, 1, kTaskMost}},
      {"recall.values", IntField{&c.recall.values, 2, kTaskMost}},
      {"classify.backbone", TextField{&c.classify.backbone, {"decoder", "encoder"}}},
      {"classify.pooling", TextField{&c.classify.pooling, {"cls", "last", "mean"}}},
      {"classify.head_size", IntField{&c.classify.head_size, 0, 1 << 20}},
      {"classify.dropout", DoubleField{&c.classify.dropout, 0.0, 0.99}},
      {"classify.class_weights", TextField{&c.classify.class_weights, {"none", "balanced"}},
       Texts::kRead},
      {"classify.classes", IntField{&c.classify.text.classes, 2, 1 << 16}, Texts::kGenerated},
      {"classify.length", IntField{&c.classify.text.length, 1, kTaskMost}, Texts::kGenerated},
      {"classify.signal", IntField{&c.classify.text.signal, 1, kTaskMost}, Texts::kGenerated},
      {"classify.misleading", IntField{&c.classify.text.misleading, 0, kTaskMost},
       Texts::kGenerated},
      {"classify.words_per_class", IntField{&c.classify.text.words_per_class, 1, 1 << 16},
       Texts::kGenerated},
      {"classify.noise", IntField{&c.classify.text.noise, 1, kTaskMost}, Texts::kGenerated},
      {"summarize.decoder_layers", IntField{&c.summarize.decoder_layers, 0, 4096}},
      {"summarize.max_summary", IntField{&c.summarize.max_summary, 1, kTaskMost}, Texts::kRead},
      {"summarize.sentences", IntField{&c.summarize.select.sentences, 1, 1 << 16},
       Texts::kGenerated},
      {"summarize.selected", IntField{&c.summarize.select.selected, 1, 1 << 16}, Texts::kGenerated},
      {"summarize.words", IntField{&c.summarize.select.words, 1, 1 << 16}, Texts::kGenerated},
      {"summarize.cues", IntField{&c.summarize.select.cues, 2, 1 << 16}, Texts::kGenerated},
      {"summarize.vocabulary", IntField{&c.summarize.select.vocabulary, 1, kTaskMost},
       Texts::kGenerated},
      {"train.steps", IntField{&t.steps, 1, kMany}},
      {"train.batch_size", IntField{&t.batch_size, 1, 1 << 20}},
      {"train.accumulate", IntField{&t.accumulate, 1, 1 << 20}},
      {"train.seq_len", IntField{&t.seq_len, 2, 1 << 24}},
      {"train.learning_rate", DoubleField{&t.learning_rate, 0.0, 10.0}},
      {"train.final_fraction", DoubleField{&t.final_fraction, 0.0, 1.0}},
      {"train.warmup_steps", IntField{&t.warmup_steps, -1, kMany}},
      {"train.schedule", TextField{&t.schedule, {"cosine", "linear", "constant"}}},
      {"train.lambda_warmup_steps", IntField{&t.lambda_warmup_steps, 0, kMany}},
      {"train.beta1", DoubleField{&t.beta1, 0.0, 0.999999}},
      {"train.beta2", DoubleField{&t.beta2, 0.0, 0.999999}},
      {"train.eps", DoubleField{&t.eps, 0.0, 1.0}},
      {"train.weight_decay", DoubleField{&t.weight_decay, 0.0, 10.0}},
      {"train.clip_norm", DoubleField{&t.clip_norm, 0.0, kHuge}},
      {"train.label_smoothing", DoubleField{&t.label_smoothing, 0.0, 0.999}},
      {"train.z_loss", DoubleField{&t.z_loss, 0.0, 10.0}},
      {"train.sparsity_weight", DoubleField{&t.sparsity_weight, 0.0, kHuge}},
      {"train.focus_weight", DoubleField{&t.focus_weight, 0.0, kHuge}},
      {"train.dtype", TextField{&t.dtype, {"float32", "bfloat16"}}},
      {"train.device", TextField{&t.device, {}}},
      {"train.activation_checkpointing", &t.activation_checkpointing},
      {"train.keep_attention", TextField{&t.keep_attention, {"nothing", "sums", "results"}}},
      {"train.shard", TextField{&t.shard, {"none", "optimizer", "gradients", "parameters"}}},
      {"train.context_parallel", IntField{&t.context_parallel, 1, 4096}},
      {"train.eval_every", IntField{&t.eval_every, 0, kMany}},
      {"train.eval_batches", IntField{&t.eval_batches, 1, kMany}},
      {"train.log_every", IntField{&t.log_every, 1, kMany}},
      {"train.stats_every", IntField{&t.stats_every, 0, kMany}},
      {"train.sample_prompts", TextField{&t.sample_prompts, {}}},
      {"train.checkpoint_every", IntField{&t.checkpoint_every, 1, kMany}},
      {"train.keep_checkpoints", IntField{&t.keep_checkpoints, 2, 1 << 20}},
      {"train.peak_tflops", DoubleField{&t.peak_tflops, 0.0, 1e9}},
      {"train.max_skipped_steps", IntField{&t.max_skipped_steps, 1, kMany}},
  };
}

KeyParts parts_of(const std::string& key) {
  const size_t dot = key.find('.');
  if (dot == std::string::npos) return {"", key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

Field field_of(RunConfig& config, const std::string& key) {
  const auto known = fields(config);
  const auto field = std::ranges::find_if(known, [&](const Field& f) { return key == f.key; });
  if (field == known.end()) fail_unknown(key, known);
  return *field;
}

bool is_read(const RunConfig& config, const Field& field) {
  const std::string section = parts_of(field.key).section;
  const auto owner = find_task(section);
  if (owner && *owner != config.task) return false;
  const std::string_view key = field.key;
  if (key == "model.from") return !config.model.from.empty();
  if (section == "model" && !config.model.from.empty()) {
    return key == "model.max_position_embeddings";
  }
  if (section == "curriculum") return config.task == Task::kNeedle && config.curriculum.steps > 0;
  if (key == "train.sample_prompts") return config.task == Task::kLanguageModel;
  if (key == "train.shard") return config.train.shard != "none";
  if (key == "train.context_parallel") return config.train.context_parallel > 1;
  const bool read = config.task == Task::kLanguageModel || !config.data.train.empty();
  return field.texts == Field::Texts::kAny || (field.texts == Field::Texts::kRead) == read;
}

}  // namespace diffattn::train
