// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/language_model.h"

#include <torch/torch.h>

#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/option_checks.h"
#include "diffattn/nn/presets.h"

namespace diffattn::app {

train::RunConfig BenchModel::run_config(const std::string& name, int64_t batch, int64_t seq) const {
  train::RunConfig config;
  config.model.attention = name;
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
  verb.add_option("--dtype", model.dtype, "type of the weights (default float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  add_device_option(verb, model.device);
  verb.add_option("--threads", model.threads, "threads (default: as torch chooses)")
      ->check(integer_in(1, 1024));
}

}  // namespace diffattn::app
