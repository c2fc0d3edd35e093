// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/stack.h"

#include "nn/models/activation_checkpointing.h"
#include "nn/models/token_ids.h"
#include "nn/parts/residual_stream.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

RMSNorm make_model_norm(const ModelConfig& config) {
  return RMSNorm(RMSNormOptions(config.hidden_size)
                     .eps(config.rms_norm_eps)
                     .rounding(NormRounding::kBeforeWeight));
}

DiffBlock make_block(const ModelConfig& config, const StackOptions& options, int64_t layer) {
  const auto role = options.causal() ? AttentionRole::kCausal : AttentionRole::kBidirectional;
  const auto block = DiffBlockOptions(config.hidden_size, config.intermediate_size)
                         .mlp_bias(config.mlp_bias)
                         .norm_eps(config.rms_norm_eps)
                         .norm_rounding(NormRounding::kBeforeWeight);
  return DiffBlock(
      block, make_attention(config, layer, role),
      options.cross_attention() ? make_attention(config, layer, AttentionRole::kCross) : nullptr);
}

/// Returns entry i of a list, or null without a list.
template <class T>
T* entry(std::vector<T>* list, size_t i) {
  return list != nullptr ? &(*list)[i] : nullptr;
}

}  // namespace

torch::nn::Embedding make_embedding(const ModelConfig& config) {
  auto options = torch::nn::EmbeddingOptions(config.vocab_size, config.hidden_size);
  if (config.pad_token_id) options.padding_idx(*config.pad_token_id);
  return torch::nn::Embedding(options);
}

StackImpl::StackImpl(const ModelConfig& config, const StackOptions& options) {
  if (options.embedding()) embed_tokens = register_module("embed_tokens", make_embedding(config));
  torch::nn::ModuleList list = register_module("layers", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < options.layers(); ++layer) {
    layers.push_back(make_block(config, options, layer));
    list->push_back(layers.back());
  }
  norm = register_module("norm", make_model_norm(config));
}

void StackImpl::check_input(const ModelInput& input) const {
  const auto check_caches = [&](const char* name, const KvCaches* caches) {
    if (caches == nullptr || caches->size() == layers.size()) return;
    throw_argument_error(name, c10::str("one per layer, ", layers.size()),
                         std::to_string(caches->size()));
  };
  check_caches("caches", input.caches);
  check_caches("cross_caches", input.cross_caches);
  if (!input.embedded) {
    if (!embed_tokens) {
      throw_argument_error("embedded", "embedded tokens, since this stack has no embedding",
                           "none");
    }
    check_token_ids(input.ids, embed_tokens->weight);
  }
  const bool crosses = !layers.empty() && layers.front()->cross_attn;
  if (!crosses && (input.context || input.cross_caches || input.cross_traces)) {
    throw_argument_error("context", "none, since this stack has no cross-attention",
                         "a context, its caches or its traces");
  }
  if (checkpointed_ && torch::GradMode::is_enabled() && (input.traces || input.cross_traces)) {
    throw_argument_error("traces",
                         "none with activation checkpointing, whose backward pass runs the layers "
                         "a second time; disable gradients, traces or checkpointing",
                         "traces");
  }
}

ModelOutput StackImpl::forward(const ModelInput& input) {
  check_input(input);
  ModelOutput output;
  const Tensor x = input.embedded ? *input.embedded : embed_tokens(input.ids);
  if (input.traces) input.traces->assign(layers.size(), {});
  if (input.cross_traces) input.cross_traces->assign(layers.size(), {});
  std::optional<RotaryTable> angles;
  if (!layers.empty()) {
    AttentionInput first{.x = x, .mask = input.mask, .positions = input.positions};
    first.cache = entry(input.caches, 0);
    angles = layers.front()->self_attn->angles(first);
  }
  const bool checkpointed = checkpointed_ && torch::GradMode::is_enabled();
  ResidualStream stream(x);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (input.keep_hidden) output.hidden.push_back(stream.value());
    AttentionInput self{.mask = input.mask, .positions = input.positions, .angles = angles};
    self.cache = entry(input.caches, i);
    AttentionInput cross{.mask = input.context_mask};
    cross.cache = entry(input.cross_caches, i);
    AttentionTrace *trace = entry(input.traces, i), *cross_trace = entry(input.cross_traces, i);
    // The graph owns a checkpointed run, so its captures stay constant: it changes copies of them.
    const auto run = [=, layer = layers[i]](ResidualStream& rows, const Tensor& context) {
      AttentionInput cross_rows = cross;
      DiffBlock block = layer;
      if (context.defined()) cross_rows.context = context;
      block->run(rows, self, block->cross_attn ? &cross_rows : nullptr, trace, cross_trace);
    };
    const Tensor context = input.context.value_or(Tensor());
    if (checkpointed) {
      run_checkpointed(run, stream, context, keep_);
    } else {
      run(stream, context);
    }
  }
  output.last = stream.normed_in_full(norm);
  if (input.keep_hidden) output.hidden.push_back(output.last);
  return output;
}

void initialize_parameters(torch::nn::Module& module, double initializer_range,
                           double lambda_std_dev) {
  const torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    Tensor& parameter = item.value();
    const bool is_lambda = item.key().find("lambda_") != std::string::npos;
    if (is_lambda && parameter.dim() == 1) {
      parameter.normal_(0.0, lambda_std_dev);
    } else if (parameter.dim() >= 2) {
      parameter.normal_(0.0, initializer_range);
    } else if (item.key().ends_with("bias")) {
      parameter.zero_();
    }
  }
}

void select_rows(KvCaches& caches, const Tensor& rows) {
  for (KvCache& cache : caches) cache.select_rows(rows);
}

}  // namespace diffattn::nn
