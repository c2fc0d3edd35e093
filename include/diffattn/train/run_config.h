// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/data/tasks.h"

namespace diffattn::io {
struct Setting;
}

namespace diffattn::train {

/// A value in a run file, or in `--set`, that cannot be: names the key.
struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Everything that decides a run. Keys in a run file are `task`, `seed`, `model.hidden_size` and so
/// on; those of [model] have the names they have in config.json.
struct RunConfig {
  std::string task = "lm";  // lm, needle, recall, classify, summarize
  int64_t seed = 11;

  struct Model {
    std::string attention = "diffllama";  // a preset of the family
    int64_t vocab_size = 0;               // 0: what the tokenizer has
    int64_t hidden_size = 512;
    int64_t intermediate_size = 0;  // 0: 8/3 hidden_size, rounded up to a multiple of 64
    int64_t num_hidden_layers = 8;
    int64_t num_attention_heads = 8;
    int64_t num_key_value_heads = 0;      // 0: as num_attention_heads
    int64_t head_dim = 0;                 // 0: hidden_size / num_attention_heads
    int64_t max_position_embeddings = 0;  // 0: train.seq_len
    double rms_norm_eps = 1e-5;
    double rope_theta = 10000.0;
    double initializer_range = 0.02;
    double lambda_std_dev = 0.1;
    bool tie_word_embeddings = false;
    bool head_norm = true;      // false: an ablation
    double lambda_init = -1.0;  // of every layer; -1: as the preset has it
  } model;

  struct Data {
    std::string train;  // text file, folder, JSONL or token file
    std::string valid;  // empty: the last `valid_fraction` of train
    double valid_fraction = 0.01;
    std::string tokenizer = "bytes";  // or a path to tokenizer.json
    bool skip_bad = false;
  } data;

  data::NeedleOptions needle;  // generated: task = "needle"
  data::RecallOptions recall;  // generated: task = "recall"

  /// Needles only: the first `steps` updates see haystacks of `length` tokens, in larger batches of
  /// as many tokens. Over the next `growth_steps` they double, again and again, until they have
  /// needle.length.
  struct Curriculum {
    int64_t steps = 0;
    int64_t length = 256;
    int64_t growth_steps = 0;
  } curriculum;

  /// Without data.train the texts are generated.
  struct Classify {
    std::string backbone = "decoder";  // or "encoder"
    std::string pooling = "last";      // of valid tokens; "mean", "cls": the first
    int64_t head_size = 0;             // of the hidden layer of the head; 0: half of hidden_size
    double dropout = 0.1;
    std::string class_weights = "none";  // "balanced": texts / (classes * texts of the class)
    data::NoisyTextOptions text;
  } classify;

  /// Without data.train the documents are generated.
  struct Summarize {
    int64_t decoder_layers = 0;  // 0: as num_hidden_layers, which the encoder has
    int64_t max_summary = 256;   // tokens
    data::SelectOptions select;
  } summarize;

  struct Train {
    int64_t steps = 2000;
    int64_t batch_size = 8;
    int64_t accumulate = 1;  // micro-batches of batch_size per update
    int64_t seq_len = 1024;
    double learning_rate = 6e-4;
    double final_fraction = 0.1;
    int64_t warmup_steps = -1;  // -1: a twentieth of steps, at most 100
    std::string schedule = "cosine";
    int64_t lambda_warmup_steps = 0;  // lambda grows from 0 to what it is over so many updates
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double clip_norm = 1.0;
    double label_smoothing = 0.0, z_loss = 0.0;
    double sparsity_weight = 0.0, focus_weight = 0.0;  // alpha and beta of the attention terms
    std::string dtype = "float32";  // or "bfloat16": mixed precision, float32 master weights
    std::string device = "cpu";
    bool activation_checkpointing = false;
    std::string keep_attention = "results";  // by activation checkpointing; or "sums", "nothing"
    int64_t eval_every = 200, eval_batches = 16;
    int64_t log_every = 10, stats_every = 0;
    int64_t checkpoint_every = 200, keep_checkpoints = 3;
    double peak_tflops = 0.0;       // what utilisation refers to; 0: large products, measured
    int64_t max_skipped_steps = 8;  // non-finite updates in a row before the run stops
  } train;

  /// Throws ConfigError naming the key: an unknown one (with the nearest known), text that is not
  /// of its type, a number out of range.
  void set(const std::string& key, const std::string& value);
  /// The same of a run file, where a number in quotes is no number and a text needs them.
  void set(const io::Setting& setting);
  void set_all(const std::vector<std::pair<std::string, std::string>>& settings);

  /// Checks what concerns several keys and fills in the values marked "0: ..." or "-1: ..." that
  /// need no data.
  void resolve();

  /// Whether a run with this task reads `key`; throws ConfigError for one that does not exist.
  bool reads(const std::string& key) const;

  /// A run file with every key that this run reads: loaded again it is the same run.
  std::string to_toml() const;
};

}  // namespace diffattn::train
