// SPDX-License-Identifier: Apache-2.0
#include "train/flops.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <map>
#include <mutex>

#include "ops/layers/float_product.h"

namespace diffattn::train {
namespace {

using torch::Tensor;

/// Counts the pairs (query, key) that the causal mask allows.
double visible_pairs(const Tensor& ids, const std::optional<Tensor>& cu_seqlens, bool causal) {
  const auto of_length = [causal](double n) { return causal ? n * (n + 1.0) / 2.0 : n * n; };
  if (!cu_seqlens) {
    return static_cast<double>(ids.size(0)) * of_length(static_cast<double>(ids.size(1)));
  }
  const Tensor lengths = cu_seqlens->diff().to(torch::kCPU, torch::kFloat64);
  const double squares = lengths.square().sum().item<double>();
  return causal ? (squares + static_cast<double>(ids.numel())) / 2.0 : squares;
}

/// Returns the seconds that this thread has run on a CPU.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Runs torch on one thread in its scope.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(static_cast<int>(count_)); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  int64_t count_ = at::get_num_threads();  // threads outside the scope
};

/// Returns the FLOP/s of one thread in the time that it had a CPU, times the number of threads.
/// Time that other programs take does not count.
double measure_cpu(torch::ScalarType type) {
  const int64_t size = 512;
  const Tensor a = torch::ones({size, size}, type);
  const OneThread one;
  ops::product(a, a);  // the first call allocates and chooses a kernel
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 10; ++i) {
    const double start = thread_seconds();
    ops::product(a, a);
    fastest = std::min(fastest, thread_seconds() - start);
  }
  return 2.0 * std::pow(static_cast<double>(size), 3) / fastest * static_cast<double>(one.count_);
}

double measure_gpu(torch::Device device, torch::ScalarType type) {
  using Clock = std::chrono::steady_clock;
  const int64_t size = 4096;
  const Tensor a = torch::ones({size, size}, torch::TensorOptions().device(device).dtype(type));
  const auto run = [&](int count) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) torch::mm(a, a);
    torch::cuda::synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / count;
  };
  run(5);
  double fastest = run(1);
  for (int i = 0; i < 2; ++i) fastest = std::min(fastest, run(10));
  return 2.0 * std::pow(static_cast<double>(size), 3) / fastest;
}

}  // namespace

FlopCounter::FlopCounter(const torch::nn::Module& model, const nn::ModelConfig& config)
    : config_(config) {
  for (const auto& item : model.named_parameters()) {
    // Tied embeddings are also the output layer of a language model, but not of a classifier.
    const bool head = config.tie_word_embeddings && config.labels.empty();
    const bool looked_up = item.key().ends_with("embed_tokens.weight") && !head;
    if (item.value().dim() < 2 || looked_up) continue;
    const bool of_encoder = item.key().starts_with("encoder.");
    (of_encoder ? encoder_elements_ : elements_) += static_cast<double>(item.value().numel());
  }
}

double FlopCounter::training(const Batch& batch) const {
  const double width = 12.0 * static_cast<double>(config_.num_attention_heads * config_.head_dim);
  const auto layers = static_cast<double>(config_.num_hidden_layers);
  const auto tokens = static_cast<double>(batch.ids.numel());
  const auto& packed = batch.mask.cu_seqlens_q();
  if (config_.kind != nn::ModelKind::kEncoderDecoder) {
    const bool causal = config_.kind == nn::ModelKind::kDecoder;
    return 6.0 * elements_ * tokens + width * layers * visible_pairs(batch.ids, packed, causal);
  }
  const auto written = static_cast<double>(batch.target_ids.numel());
  const auto encoder_layers = static_cast<double>(config_.num_encoder_layers);
  const auto sources = static_cast<double>(batch.ids.size(0));
  return 6.0 * (encoder_elements_ * tokens + elements_ * written) +
         width * (encoder_layers * visible_pairs(batch.ids, packed, false) +
                  layers * (visible_pairs(batch.target_ids, {}, true) +
                            written * tokens / std::max(1.0, sources)));
}

double measured_product_speed(torch::Device device, torch::ScalarType type) {
  const torch::NoGradGuard no_grad;
  return device.is_cpu() ? measure_cpu(type) : measure_gpu(device, type);
}

double product_speed(torch::Device device, const std::string& dtype) {
  static std::mutex mutex;
  static std::map<std::string, double> measured;
  const std::scoped_lock lock(mutex);
  const auto [entry, missing] = measured.try_emplace(device.str() + " " + dtype, 0.0);
  if (missing) {
    const auto type = dtype == "bfloat16" ? torch::kBFloat16 : torch::kFloat32;
    entry->second = measured_product_speed(device, type);
  }
  return entry->second;
}

double estimate_update_flops(const RunConfig& config, int64_t parameters) {
  const RunConfig::Model& m = config.model;
  const RunConfig::Train& t = config.train;
  const bool looked_up = !m.tie_word_embeddings;  // the embedding of the input is no product
  const int64_t elements = parameters - (looked_up ? m.vocab_size * m.hidden_size : 0);
  const auto tokens = static_cast<double>(t.batch_size * t.accumulate * t.seq_len);
  const auto keys = static_cast<double>(t.seq_len + 1) / 2.0;  // of a row under a causal mask
  const auto width = static_cast<double>(m.num_attention_heads * m.head_dim * m.num_hidden_layers);
  return tokens * (6.0 * static_cast<double>(elements) + 12.0 * width * keys);
}

}  // namespace diffattn::train
