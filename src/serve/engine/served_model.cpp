// SPDX-License-Identifier: Apache-2.0
#include "serve/engine/served_model.h"

#include <unistd.h>

#include <algorithm>

#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"
#include "io/cgroup.h"

namespace diffattn::serve {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

bool on_gpu(const SchedulerOptions& options) { return options.device != "cpu"; }

torch::ScalarType type_of(const SchedulerOptions& options) {
  return options.dtype == "bfloat16"  ? torch::kBFloat16
         : options.dtype == "float16" ? torch::kFloat16
                                      : torch::kFloat32;
}

/// Bytes that the KV cache may take unless the user says otherwise.
int64_t default_cache_bytes(const SchedulerOptions& options) {
  if (on_gpu(options)) return 16 * kGiB;
  int64_t memory = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  if (const auto limit = io::memory_limit()) {
    memory = static_cast<int64_t>(std::min<uint64_t>(*limit, static_cast<uint64_t>(memory)));
  }
  return std::min(4 * kGiB, memory / 4);
}

}  // namespace

nn::CausalLM load_served_model(const SchedulerOptions& options) {
  if (!models::read_model_config(options.folder).labels.empty()) {
    throw io::Error(options.folder, "expected a causal language model, got a classifier");
  }
  nn::CausalLM model = models::load_causal_lm(options.folder, type_of(options));
  model->to(torch::Device(options.device));
  return model;
}

SchedulerOptions resolved(SchedulerOptions options, const nn::ModelConfig& config) {
  if (options.cache_tokens == 0) {
    const int64_t token_bytes = 2 * config.num_key_value_heads * config.head_dim *
                                config.num_hidden_layers *
                                static_cast<int64_t>(torch::elementSize(type_of(options)));
    const int64_t most = options.max_rows * config.max_position_embeddings;
    const int64_t fitting = default_cache_bytes(options) / std::max<int64_t>(1, token_bytes);
    options.cache_tokens = std::clamp<int64_t>(most, 256, std::max<int64_t>(256, fitting));
  }
  if (options.prefill_tokens == 0) options.prefill_tokens = on_gpu(options) ? 16384 : 512;
  return options;
}

}  // namespace diffattn::serve
