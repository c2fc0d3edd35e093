// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/stack.h"

#include "nn/models/activation_checkpointing.h"
#include "nn/models/stack_parts.h"
#include "nn/models/token_ids.h"
#include "nn/parts/residual_stream.h"
#include "nn/routes/shared_rows.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

/// Returns entry i of a list, or null without a list.
template <class T>
T* entry(std::vector<T>* list, size_t i) {
  return list != nullptr ? &(*list)[i] : nullptr;
}

/// Leaves the last token of each sequence to the remaining layers. They have no cache.
void keep_last_token(ResidualStream& stream, AttentionInput& rows, SharedTensors& shared) {
  stream = ResidualStream(stream.value().slice(1, -1));
  if (rows.positions) rows.positions = rows.positions->slice(-1, -1);
  if (rows.angles) rows.angles = {rows.angles->cos.slice(-2, -1), rows.angles->sin.slice(-2, -1)};
  if (const auto& mask = rows.mask.mask(); mask && mask->dim() > 1 && mask->size(-2) > 1) {
    rows.mask.mask(mask->slice(-2, -1));
  }
  if (shared.memory.defined()) shared.memory = shared.memory.slice(1, -1);
}

/// Calls after_forward(), and registers a hook that calls before_backward().
void end_forward(const ResidualStream& stream, const std::shared_ptr<LayerWatcher>& watcher) {
  watcher->after_forward();
  for (const Tensor& result : {stream.sum(), stream.pending()}) {
    if (!result.defined() || !result.requires_grad()) continue;
    result.register_hook([watcher](const Tensor&) { watcher->before_backward(); });
  }
}

}  // namespace

torch::nn::Embedding make_embedding(const ModelConfig& config) {
  auto options = torch::nn::EmbeddingOptions(config.vocab_size, config.hidden_size);
  if (config.pad_token_id) options.padding_idx(*config.pad_token_id);
  return torch::nn::Embedding(options);
}

StackImpl::StackImpl(const ModelConfig& config, const StackOptions& options) {
  if (options.embedding()) embed_tokens = register_module("embed_tokens", make_embedding(config));
  StackParts parts = make_stack_parts(config, options);
  layers = std::move(parts.layers);
  norm = std::move(parts.norm);
  torch::nn::ModuleList list = register_module("layers", torch::nn::ModuleList());
  for (const auto& layer : layers) list->push_back(layer);
  register_module(parts.norm_name, norm.module());
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
  const bool crosses = !layers.empty() && layers.front()->cross_attn != nullptr;
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

size_t StackImpl::layers_for_all_tokens(const ModelInput& input) const {
  size_t count = layers.size();
  if (!input.last_only || input.keep_hidden || input.mask.cu_seqlens_q()) return count + 1;
  while (count > 0 && !layers[count - 1]->self_attn->keeps_cache()) --count;
  return count;
}

ModelOutput StackImpl::forward(const ModelInput& input) {
  check_input(input);
  ModelOutput output;
  const Tensor x = input.embedded ? *input.embedded : embed_tokens(input.ids);
  if (input.traces) input.traces->assign(layers.size(), {});
  if (input.cross_traces) input.cross_traces->assign(layers.size(), {});
  AttentionInput rows{.mask = input.mask, .positions = input.positions};
  if (!layers.empty()) {
    AttentionInput first{.x = x, .mask = input.mask, .positions = input.positions};
    first.cache = entry(input.caches, 0);
    rows.angles = layers.front()->self_attn->angles(first);
  }
  const bool checkpointed = checkpointed_ && torch::GradMode::is_enabled();
  const size_t all_tokens = layers_for_all_tokens(input);
  SharedTensors shared;
  ResidualStream stream(x);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (i == all_tokens) keep_last_token(stream, rows, shared);
    if (input.keep_hidden) output.hidden.push_back(stream.value());
    AttentionLayer& mixer = *layers[i]->self_attn;
    AttentionInput self = rows;
    self.cache = entry(input.caches, i);
    if (mixer.shares_tensors()) self.shared = &shared;
    AttentionInput cross{.mask = input.context_mask};
    cross.cache = entry(input.cross_caches, i);
    AttentionTrace *trace = entry(input.traces, i), *cross_trace = entry(input.cross_traces, i);
    // The graph owns a checkpointed run, so its captures stay constant: it changes copies of them.
    // The backward may run it again in another thread, which needs the same SharedRows.
    SharedRows* const shared_rows = SharedRows::current();
    const auto run = [=, layer = layers[i]](ResidualStream& terms, const Tensor& context) {
      const SharedRows::Scope scope(shared_rows);
      AttentionInput cross_rows = cross;
      if (context.defined()) cross_rows.context = context;
      if (layer->watcher) layer->watcher->before_forward();
      layer->run(terms, self, layer->cross_attn ? &cross_rows : nullptr, trace, cross_trace);
      if (layer->watcher) end_forward(terms, layer->watcher);
    };
    const Tensor context = input.context.value_or(Tensor());
    // A second run could not give shared tensors to other layers, so those layers are not
    // checkpointed.
    if (checkpointed && !mixer.shares_tensors()) {
      run_checkpointed(run, stream, context, keep_);
    } else {
      run(stream, context);
    }
    if (const auto needed = mixer.needed_rows(); needed && self.cache != nullptr) {
      self.cache->keep_newest(*needed);
    }
  }
  if (all_tokens == layers.size()) keep_last_token(stream, rows, shared);
  output.last = norm.in_full(stream);
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
  for (const auto& part : module.modules(/*include_self=*/false)) {
    if (auto* layer = dynamic_cast<AttentionLayer*>(part.get())) layer->draw_own_parameters();
  }
}

void select_rows(KvCaches& caches, const Tensor& rows) {
  for (KvCache& cache : caches) cache.select_rows(rows);
}

}  // namespace diffattn::nn
