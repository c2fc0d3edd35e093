// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/language_model.h"

#include <torch/torch.h>

#include <filesystem>

#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/model_option.h"
#include "apps/diffattn/options/option_checks.h"
#include "diffattn/nn/presets.h"
#include "train/new_model.h"

namespace diffattn::app {

void BenchModel::take_folder() {
  if (folder.empty()) return;
  train::RunConfig config;
  config.model.from = folder;
  train::take_sizes_of_folder(config);
  const train::RunConfig::Model& m = config.model;
  hidden = m.hidden_size;
  intermediate = m.intermediate_size;
  layers = m.num_hidden_layers;
  heads = m.num_attention_heads;
  kv_heads = m.num_key_value_heads;
  vocab = m.vocab_size;
  const std::filesystem::path path(folder);
  attention = {path.has_filename() ? path.filename() : path.parent_path().filename()};
}

train::RunConfig BenchModel::run_config(const std::string& name, int64_t batch, int64_t seq) const {
  train::RunConfig config;
  config.model.from = folder;
  config.model.attention = folder.empty() ? name : config.model.attention;
  config.model.vocab_size = vocab;
  config.model.hidden_size = hidden;
  config.model.intermediate_size = intermediate;
  config.model.num_hidden_layers = layers;
  config.model.num_attention_heads = heads;
  config.model.num_key_value_heads = kv_heads;
  config.train.batch_size = batch;
  config.train.seq_len = seq;
  config.train.dtype = dtype;
  config.train.device = device;
  config.train.warmup_steps = 0;
  config.resolve();
  return config;
}

Json BenchModel::description() const {
  return {{"hidden_size", hidden},
          {"intermediate_size", intermediate},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads == 0 ? heads : kv_heads},
          {"vocab_size", vocab},
          {"dtype", dtype},
          {"device", device},
          {"threads", threads}};
}

void add_bench_model(CLI::App& verb, BenchModel& model) {
  model.threads = torch::get_num_threads();
  const auto size = integer_in(1, int64_t{1} << 24);
  CLI::Option* folder =
      verb.add_option("--model", model.folder, "time this model instead of random ones");
  take_model_folders(*folder);
  verb.add_option("--attention", model.attention,
                  "attention of the models (default diffllama,transformer)")
      ->delimiter(',')
      ->check(CLI::IsMember(nn::preset_names()));
  verb.add_option("--hidden", model.hidden, "width of the model (default 384)")->check(size);
  verb.add_option("--intermediate", model.intermediate,
                  "width of the feed-forward layer (default 1024)")
      ->check(size);
  verb.add_option("--layers", model.layers, "layers (default 8)")->check(size);
  verb.add_option("--heads", model.heads, "heads of the Transformer of equal size (default 6)")
      ->check(size);
  verb.add_option("--kv-heads", model.kv_heads, "its number of kv heads (default: as --heads)")
      ->check(size);
  verb.add_option("--vocab", model.vocab, "tokens of the vocabulary (default 8192)")->check(size);
  for (const char* option : {"--attention", "--hidden", "--intermediate", "--layers", "--heads",
                             "--kv-heads", "--vocab"}) {
    folder->excludes(verb.get_option(option));
  }
  verb.add_option("--dtype", model.dtype, "type of the weights (default float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  add_device_option(verb, model.device);
  verb.add_option("--threads", model.threads, "threads (default: as torch chooses)")
      ->check(integer_in(1, 1024));
}

}  // namespace diffattn::app
