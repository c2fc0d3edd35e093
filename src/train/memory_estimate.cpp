// SPDX-License-Identifier: Apache-2.0
#include "train/memory_estimate.h"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "diffattn/nn/cross_entropy.h"
#include "diffattn/nn/presets.h"

namespace diffattn::train {
namespace {

// Measured: pages of the libraries that a run touches after loading, and the share of the heap that
// stays unused between large blocks of different sizes.
constexpr int64_t kTouchedBytes = int64_t{30} << 20;
constexpr int64_t kHeapWastePercent = 12;

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;  // in pages
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Resident memory right after loading the libraries: 110 MiB with torch for CPUs, 390 MiB with
// torch for GPUs.
const int64_t loaded_bytes = resident_bytes();

// Settings can ask for more bytes than an int64_t holds. A double holds them, and an estimate needs
// no more than its 53 bits.
using Bytes = double;

int64_t whole_bytes(Bytes bytes) {
  constexpr auto kMost = Bytes{int64_t{1} << 60};  // MemoryEstimate::total() adds five
  return static_cast<int64_t>(std::min(bytes, kMost));
}

/// Bytes per token that a layer saves for its backward pass, and that the backward pass of one
/// layer needs in addition.
struct LayerBytes {
  Bytes saved, working;
};

/// Layers that compute the same tokens: the model, or one half of an encoder-decoder.
struct Layers {
  Bytes count, tokens;
  LayerBytes layer;
};

/// Returns the number of processes of the job.
int64_t processes_of(const RunConfig& config) {
  return config.job.processes * config.train.context_parallel;
}

bool is_sharded(const RunConfig& config) {
  return processes_of(config) > 1 && config.train.shard != "none";
}

/// True if the matrices have bfloat16 copies, and the residual stream and gradients their type.
bool has_working_copy(const RunConfig& config) {
  const RunConfig::Train& t = config.train;
  return t.dtype == "bfloat16" && t.device != "cpu" && t.shard != "parameters";
}

/// Parameters whose weights, gradients and moments a process has at once.
struct Held {
  Bytes weights, gradients, moments;
};

/// Divides the parameters of `layers` layers among the processes, as DataParallel does.
Held held_parameters(const RunConfig& config, Bytes parameters, Bytes layers) {
  Held held{parameters, parameters, parameters};
  if (!is_sharded(config)) return held;
  const RunConfig::Model& m = config.model;
  const Bytes part = parameters / Bytes(processes_of(config));
  held.moments = part;
  if (config.train.shard == "optimizer") return held;
  if (config.train.shard == "gradients") {
    // Sums of buckets are on their way while others fill. Micro-batches add up whole gradients.
    const Bytes bucket = std::clamp<Bytes>(parameters / 32, 1 << 16, 4 << 20);
    if (config.train.accumulate == 1) held.gradients = std::min(parameters, part + 4 * bucket);
    return held;
  }
  // Embedding and head stay whole; so do two layers, and the gradients of four.
  const Bytes outside =
      Bytes(m.vocab_size) * Bytes(m.hidden_size) * (m.tie_word_embeddings ? 1 : 2);
  const Bytes inside = std::max<Bytes>(0, parameters - outside);
  held.weights = parameters - inside +
                 std::min(inside, inside / Bytes(processes_of(config)) + 2 * inside / layers);
  held.gradients = std::min(parameters, part + 4 * inside / layers);
  return held;
}

LayerBytes layer_bytes(const RunConfig& config) {
  const RunConfig::Model& m = config.model;
  const bool mixed = config.train.dtype == "bfloat16";
  const bool gpu = config.train.device != "cpu";
  const int64_t stream = has_working_copy(config) ? 2 : 4;  // bytes
  const int64_t hidden = m.hidden_size, inner = m.intermediate_size;
  const int64_t heads = m.num_attention_heads * m.head_dim, kv = m.num_key_value_heads * m.head_dim;
  const int64_t bytes = mixed ? 2 : 4;
  // The residual stream before and after the attention; the outputs of both norms; q, k, v; the
  // output of the attention and, for differential heads, the outputs of both maps. A CPU saves at
  // most one of these.
  const int64_t parts = m.attention == "transformer" ? 1 : 3;
  const int64_t rest = mixed && gpu && parts == 3 ? 2 * heads : 0;  // one byte per rounded value
  const int64_t attention =
      2 * hidden * stream + bytes * (2 * hidden + heads + 2 * kv + parts * heads) + rest;
  // gate, up and their product; also silu(gate) where torch computes it.
  const int64_t feed_forward = bytes * inner * (mixed && !gpu ? 4 : 3);
  // Gradients of the three wide tensors of the feed-forward layer and of the residual stream. On a
  // GPU also float32 rows of the norms and the workspace of the attention, fitted to measurements.
  const int64_t gradients = bytes * 3 * inner + 2 * hidden * stream;
  const int64_t workspace = gpu ? 14 * hidden * 4 + 6 * heads * bytes : 0;
  return {Bytes(attention + feed_forward), Bytes(gradients + workspace)};
}

/// Returns the layers of a model and a process's tokens of one micro-batch. Rows of texts may be
/// shorter.
std::vector<Layers> layers_of(const RunConfig& config) {
  const RunConfig::Model& m = config.model;
  const Bytes rows = Bytes(config.train.batch_size) / Bytes(config.job.processes);
  const Bytes tokens = Bytes(config.train.seq_len) / Bytes(config.train.context_parallel);
  const Layers first{Bytes(m.num_hidden_layers), rows * tokens, layer_bytes(config)};
  if (config.task != Task::kSummarize) return {first};
  // A layer of the decoder also looks at the source: q and the outputs of the maps for each of its
  // own tokens, k and v for each token of the source.
  const Bytes bytes = config.train.dtype == "bfloat16" ? 2 : 4;
  const Bytes stream = has_working_copy(config) ? 2 : 4;
  const auto hidden = Bytes(m.hidden_size), heads = Bytes(m.num_attention_heads * m.head_dim);
  const auto kv = Bytes(m.num_key_value_heads * m.head_dim);
  const Bytes parts = m.attention == "transformer" ? 1 : 3;
  const auto targets = Bytes(config.data.train.empty() ? config.summarize.select.selected *
                                                             (config.summarize.select.words + 1)
                                                       : config.summarize.max_summary);
  LayerBytes layer = first.layer;
  layer.saved += hidden * stream + bytes * (hidden + (1 + parts) * heads) +
                 bytes * 2 * kv * Bytes(config.train.seq_len) / targets;
  const int64_t depth = config.summarize.decoder_layers;
  return {first, {depth > 0 ? Bytes(depth) : first.count, rows * targets, layer}};
}

/// Returns the number of tokens of a micro-batch for which the model computes logits.
Bytes tokens_with_logits(const RunConfig& config, const std::vector<Layers>& stacks) {
  return config.task == Task::kClassify ? 0 : stacks.back().tokens;
}

nn::MultiheadDiffAttentionOptions attention_options(const RunConfig::Model& m) {
  return nn::preset_options(m.attention, nn::PresetOptions(m.hidden_size, m.num_attention_heads)
                                             .num_key_value_heads(m.num_key_value_heads)
                                             .head_dim(m.head_dim));
}

/// True if a kernel can reuse the row sums in the backward pass.
bool sums_are_kept(const RunConfig& config) {
  const RunConfig::Model& m = config.model;
  if (config.train.device == "cpu" || config.train.dtype != "bfloat16") return false;
  const auto sizes = nn::check(attention_options(m));
  return (m.head_dim == 64 || m.head_dim == 128) && sizes.value_dim <= 128;
}

/// Bytes per token of a layer's attention that activation checkpointing keeps.
int64_t kept_bytes(const RunConfig& config) {
  const RunConfig::Model& m = config.model;
  const bool gpu = config.train.device != "cpu", mixed = config.train.dtype == "bfloat16";
  if (m.attention == "transformer" || m.attention == "introspective") return 0;
  const int64_t out = m.num_attention_heads * m.head_dim * (mixed ? 2 : 4);
  const int64_t sums = 2 * (m.num_attention_heads / 2) * 4;
  const int64_t saved = mixed ? out + out / 2 : out;  // o and o2, with one byte per rounded value
  const int64_t calls = m.attention == "dint" ? 2 : 1;
  // A GPU keeps o and o2, a CPU the o that its backward pass reads: that of a head norm.
  const bool o = !gpu && attention_options(m).head_norm() != nn::HeadNorm::kNone;
  const int64_t outputs = gpu ? 2 * saved : o ? out : 0;
  if (config.train.keep_attention == "results") return calls * (out + sums + outputs);
  const bool kept = config.train.keep_attention == "sums" && sums_are_kept(config);
  return kept ? calls * (saved + sums) : 0;
}

}  // namespace

MemoryEstimate estimate_memory(const RunConfig& config, int64_t parameter_count) {
  const RunConfig::Model& m = config.model;
  const bool mixed = config.train.dtype == "bfloat16";
  const bool gpu = config.train.device != "cpu";
  const auto parameters = Bytes(parameter_count);
  const bool copies = has_working_copy(config);
  const Bytes wide = copies ? 2 : 4;  // bytes of an element of the stream and of gradients
  const auto kept = Bytes(kept_bytes(config));
  const std::vector<Layers> stacks = layers_of(config);
  // Sums over all layers, and the largest need of one layer at a time.
  Bytes activations = 0, hidden_rows = 0, recomputed = 0, layer_working = 0, all_layers = 0;
  for (const auto& [count, tokens, layer] : stacks) {
    const Bytes rows = tokens * Bytes(m.hidden_size) * wide;
    // On a GPU a layer's input is two terms of a sum. The layer that is recomputed reuses what it
    // has kept.
    const Bytes inputs = (gpu ? 2 : 1) * rows;
    activations += config.train.activation_checkpointing ? count * (inputs + tokens * kept)
                                                         : count * tokens * layer.saved;
    activations += 2 * rows;  // around the last norm
    recomputed = std::max(recomputed, tokens * (layer.saved - kept));
    layer_working = std::max(layer_working, tokens * layer.working);
    hidden_rows = std::max(hidden_rows, rows);
    all_layers += count;
  }
  if (config.train.activation_checkpointing) activations += recomputed;
  const Held held = held_parameters(config, parameters, all_layers);
  MemoryEstimate estimate;
  estimate.parameters = whole_bytes(held.weights * (mixed ? 6 : 4));
  estimate.optimizer = whole_bytes(held.moments * 8);
  // Micro-batches add up in float32, and so do processes.
  const bool several = processes_of(config) > 1;
  const Bytes gradient = !copies ? 4 : config.train.accumulate > 1 ? 6 : several ? 4 : 2;
  estimate.gradients = whole_bytes(held.gradients * gradient + layer_working);
  estimate.activations = whole_bytes(activations);
  const Bytes head = Bytes(m.vocab_size) * Bytes(m.hidden_size) * wide;
  const Bytes chunk = std::min(Bytes(nn::default_chunk_bytes(torch::Device(config.train.device))),
                               tokens_with_logits(config, stacks) * Bytes(m.vocab_size) * wide);
  // Logits, which become gradients in place, except for mixed precision on the CPU, which needs
  // three copies; gradients of hidden states and head.
  const Bytes loss = (mixed && !gpu ? 3 : 1) * chunk + hidden_rows + head;
  const Bytes backward = 2 * head + 2 * hidden_rows + layer_working;
  estimate.working = whole_bytes(std::max(loss, backward));
  if (gpu) return estimate;
  const int64_t runtime = loaded_bytes + kTouchedBytes;
  estimate.runtime = runtime;
  // With activation checkpointing or train.shard the program returns large blocks to the system at
  // once.
  const auto needed = Bytes(estimate.total() - runtime);
  if (!config.train.activation_checkpointing && !is_sharded(config)) {
    estimate.runtime += whole_bytes(needed * kHeapWastePercent / 100);
  }
  return estimate;
}

}  // namespace diffattn::train
