// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diffattn/data/tasks.h"
#include "diffattn/error.h"

namespace diffattn::io {
struct Setting;
}

namespace diffattn::train {

/// A value in a run file or in `--set` that is not valid. The message starts with the key.
struct ConfigError : Error {
  using Error::Error;
};

/// The task that a run trains a model for.
enum class Task { kLanguageModel, kNeedle, kRecall, kClassify, kSummarize };

/// Returns the name in run files: "lm", "needle", "recall", "classify" or "summarize".
const std::string& task_name(Task task);
/// Returns the task of that name, or nothing.
std::optional<Task> find_task(std::string_view name);
/// Returns the names of all tasks.
const std::vector<std::string>& task_names();

/// All settings of a run. The keys in a run file are `task`, `seed`, `model.hidden_size` and so on;
/// those of [model] have the same names as in config.json.
struct RunConfig {
  Task task = Task::kLanguageModel;
  int64_t seed = 11;

  /// This process among those of a job that compute different rows of every batch. With
  /// train.context_parallel they are groups of processes. It is no key: a run file says nothing
  /// about processes.
  struct Job {
    int64_t rank = 0, processes = 1;
  } job;

  struct Model {
    /// Folder of a language model whose architecture and weights the run starts from, with a new
    /// optimiser. Of the other keys of [model] only max_position_embeddings then has an effect.
    std::string from;
    std::string attention = "diffllama";  // name of a preset
    int64_t vocab_size = 0;               // 0: the size of the tokenizer or of the generated task
    int64_t hidden_size = 512;
    int64_t intermediate_size = 0;  // 0: 8/3 hidden_size, rounded up to a multiple of 64
    int64_t num_hidden_layers = 8;
    int64_t num_attention_heads = 8;
    int64_t num_key_value_heads = 0;      // 0: num_attention_heads
    int64_t head_dim = 0;                 // 0: hidden_size / num_attention_heads
    int64_t max_position_embeddings = 0;  // 0: train.seq_len
    double rms_norm_eps = 1e-5;
    double rope_theta = 10000.0;
    double initializer_range = 0.02;
    double lambda_std_dev = 0.1;
    bool tie_word_embeddings = false;
    bool head_norm = true;      // false: ablation without the norm of each head
    double lambda_init = -1.0;  // for every layer; -1: the value of the preset
  } model;

  struct Data {
    std::string train;  // text file, folder, JSONL file or token file
    std::string valid;  // the same; empty: split off from `train`
    /// Share of `train` that becomes validation data if `valid` is empty. The seed chooses whole
    /// documents or examples; with fewer than 20 documents, the end of each one is cut off.
    double valid_fraction = 0.01;
    std::string tokenizer = "bytes";  // or the path of a tokenizer.json or of its folder
    bool skip_bad = false;            // skip and count bad lines of JSONL files
  } data;

  data::NeedleOptions needle;  // sequences of Task::kNeedle
  data::RecallOptions recall;  // sequences of Task::kRecall

  /// Curriculum for Task::kNeedle. The first `steps` updates see haystacks of `length` tokens, in
  /// batches with more rows and about as many tokens. Then the length doubles in equal stages over
  /// `growth_steps` updates, until it reaches needle.length.
  struct Curriculum {
    int64_t steps = 0;  // 0: no curriculum
    int64_t length = 256;
    int64_t growth_steps = 0;
  } curriculum;

  /// Settings of Task::kClassify. Without data.train the texts are generated.
  struct Classify {
    std::string backbone = "decoder";  // or "encoder"
    std::string pooling = "last";      // last token, "mean", or "cls": first token
    int64_t head_size = 0;             // hidden layer of the head; 0: half of hidden_size
    double dropout = 0.1;
    std::string class_weights = "none";  // "balanced": texts / (classes * texts of the class)
    data::NoisyTextOptions text;
  } classify;

  /// Settings of Task::kSummarize. Without data.train the documents are generated.
  struct Summarize {
    int64_t decoder_layers = 0;  // 0: num_hidden_layers, as in the encoder
    int64_t max_summary = 256;   // tokens
    data::SelectOptions select;
  } summarize;

  struct Train {
    int64_t steps = 2000;
    int64_t batch_size = 8;
    int64_t accumulate = 1;  // micro-batches of batch_size rows per update
    int64_t seq_len = 1024;
    double learning_rate = 6e-4;
    double final_fraction = 0.1;  // of learning_rate, in the last update
    int64_t warmup_steps = -1;    // -1: a twentieth of steps, at most 100
    std::string schedule = "cosine";
    int64_t lambda_warmup_steps = 0;  // updates in which lambda grows from 0 to its own value
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double clip_norm = 1.0;  // 0: no clipping
    double label_smoothing = 0.0, z_loss = 0.0;
    double sparsity_weight = 0.0, focus_weight = 0.0;  // weights of the attention penalty
    std::string dtype = "float32";  // or "bfloat16": mixed precision with float32 weights
    std::string device = "cpu";
    bool activation_checkpointing = false;
    std::string keep_attention = "results";  // in checkpointed layers; or "sums", "nothing"
    /// The processes of a job divide nothing ("none"), the "optimizer" state, also the "gradients",
    /// or also the "parameters" of layers.
    std::string shard = "none";
    int64_t context_parallel = 1;  // processes that share the tokens of each row
    int64_t eval_every = 200, eval_batches = 16;
    int64_t log_every = 10, stats_every = 0;
    std::string sample_prompts;  // one per line; a language model continues them at each evaluation
    int64_t checkpoint_every = 200, keep_checkpoints = 3;
    double peak_tflops = 0.0;       // peak rate for the utilisation; 0: measured
    int64_t max_skipped_steps = 8;  // non-finite updates in a row before the run stops

    /// Returns the number of groups of context_parallel processes. The groups compute different
    /// rows. Throws ConfigError if context_parallel does not divide `processes`.
    int64_t groups_of(int64_t processes) const;
  } train;

  /// Sets one key from text. Throws ConfigError for an unknown key (naming the nearest known one),
  /// for text that is not of the key's type, and for a number out of range.
  void set(const std::string& key, const std::string& value);
  /// Sets one key from a run file. Like set(key, value), but also throws ConfigError if a number or
  /// boolean is in quotes, or if a text is not.
  void set(const io::Setting& setting);
  void set_all(const std::vector<std::pair<std::string, std::string>>& settings);

  /// Fills in the values that 0 or -1 leave open and that need no data. Throws ConfigError if keys
  /// contradict each other.
  void resolve();

  /// True if a run with this config reads `key`. Throws ConfigError for an unknown key.
  bool reads(const std::string& key) const;

  /// Returns a run file with every key that this run reads. Loading it gives the same run.
  std::string to_toml() const;
};

}  // namespace diffattn::train
