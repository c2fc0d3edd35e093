// SPDX-License-Identifier: Apache-2.0
#include "infer/step_model.h"

#include <utility>

namespace diffattn::infer {
namespace {

using nn::AttentionKind;
using torch::Tensor;
using Map = nn::StepAttention::Map;

Map map_of(const torch::nn::Linear& linear) { return {linear->weight, linear->bias}; }

Map rows_of(const torch::nn::Linear& linear, int64_t begin, int64_t count) {
  const Tensor bias = linear->bias.defined() ? linear->bias.narrow(0, begin, count) : Tensor();
  return {linear->weight.narrow(0, begin, count), bias};
}

const void* data_of(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

token::Matrix matrix_of(const Map& map) {
  if (!map.weight.defined()) return {};
  return {data_of(map.weight), data_of(map.bias), static_cast<int>(map.weight.size(0))};
}

/// Returns (first slot, number of slots) of q1 and q2 for each query sub-head. Slots [0, H) are q1
/// of the heads, slots [H, 2H) q2; kinds with one query per head have only the first H.
Tensor slots_of(const nn::StepAttention& a) {
  const int64_t heads = a.sizes.heads;
  std::vector<int32_t> slots;
  const auto append = [&](int64_t first, int64_t count) {
    slots.push_back(static_cast<int32_t>(first));
    slots.push_back(static_cast<int32_t>(count));
  };
  for (int64_t s = 0; s < a.sizes.query_heads; ++s) {
    if (a.kind == AttentionKind::kGrouped) {
      const int64_t signals = heads / a.noise_heads;
      const int64_t group = s / (signals + 1), index = s % (signals + 1);
      if (index < signals) {
        append(group * signals + index, 1);
      } else {
        append(heads + group * signals, signals);
      }
    } else if (a.sizes.query_heads == heads || a.halves) {
      append(s, 1);
    } else {
      append(s % 2 * heads + s / 2, 1);
    }
  }
  return torch::tensor(slots, torch::kInt);
}

}  // namespace

std::optional<StepModel> StepModel::make(nn::CausalLMImpl& model, std::string& reason) {
  const Tensor embedding = model.model->embed_tokens->weight;
  StepModel step;
  step.kernels_ = embedding.is_cpu() ? ops::cpu_token_step() : ops::cuda_token_step();
  if (!embedding.is_cuda() && !embedding.is_cpu()) {
    reason = "the model is neither on a CPU nor on an NVIDIA GPU";
    return std::nullopt;
  }
  if (step.kernels_ == nullptr) {
    reason = "this build has no CUDA kernels";
    return std::nullopt;
  }
  step.embedding_ = embedding;
  step.head_ = model.head_weight();
  if (const nn::RMSNorm norm = model.model->norm.rms()) step.last_norm_ = norm->weight;
  step.norm_eps_ = static_cast<float>(model.config.rms_norm_eps);
  for (size_t i = 0; i < model.model->layers.size(); ++i) {
    auto layer = layer_of(*model.model->layers[i], reason);
    if (!layer) {
      reason = "layer " + std::to_string(i) + ": " + reason;
      return std::nullopt;
    }
    step.layers_.push_back(std::move(*layer));
  }
  reason = step.layers_.empty() ? "the model has no layers" : "";
  if (reason.empty()) {
    step.set_sizes();
    reason = step.unsupported();
  }
  if (!reason.empty()) return std::nullopt;
  return step;
}

std::optional<StepModel::Layer> StepModel::layer_of(nn::StackLayer& layer, std::string& reason) {
  if (auto* const block = dynamic_cast<nn::DiffBlockImpl*>(&layer)) return layer_of(*block, reason);
  if (auto* const plain = dynamic_cast<nn::PreNormLayerImpl*>(&layer)) {
    return layer_of(*plain, reason);
  }
  reason = "it is not a block of Llama's or Motif's form";
  return std::nullopt;
}

/// Sets the layer's attention, unless the kernels do not support it.
bool StepModel::take_attention(nn::AttentionLayer& attention, Layer& layer, std::string& reason) {
  auto step = attention.step_attention();
  if (!step) {
    reason = "its attention needs the general path";
    return false;
  }
  if (step->rotary->options.rope_type() == nn::RotaryScaling::kDynamic) {
    reason = "its rotary frequencies depend on the length";
    return false;
  }
  layer.attention = std::move(*step);
  if (layer.attention.norm_weight.defined()) {
    layer.head_norm = layer.attention.norm_weight.detach().to(torch::kFloat32).contiguous();
  }
  return true;
}

std::optional<StepModel::Layer> StepModel::layer_of(nn::DiffBlockImpl& block, std::string& reason) {
  const bool residual =
      block.options.attention_residual().value_or(!block.self_attn->adds_residual());
  if (block.enhancer || block.noise_reduction || block.gate || block.cross_attn || !residual) {
    reason = "it has parts besides attention and feed-forward layer";
    return std::nullopt;
  }
  const auto& mlp = block.mlp;
  const int64_t inner = mlp->options.hidden();
  const bool merged = mlp->options.merged();
  Layer layer{.input_norm = block.input_layernorm->weight,
              .post_norm = block.post_attention_layernorm->weight,
              .gate = merged ? rows_of(mlp->gate_up_proj, 0, inner) : map_of(mlp->gate_proj),
              .up = merged ? rows_of(mlp->gate_up_proj, inner, inner) : map_of(mlp->up_proj),
              .down = map_of(mlp->down_proj)};
  if (!take_attention(*block.self_attn, layer, reason)) return std::nullopt;
  return layer;
}

std::optional<StepModel::Layer> StepModel::layer_of(nn::PreNormLayerImpl& from,
                                                    std::string& reason) {
  const nn::RMSNorm input_norm = from.input_layernorm.rms();
  const nn::RMSNorm post_norm = from.post_attention_layernorm.rms();
  const auto* const mlp = dynamic_cast<nn::PolyGLUImpl*>(from.mlp.get());
  if (!input_norm || !post_norm || mlp == nullptr) {
    reason = "it is not a block of Llama's or Motif's form";
    return std::nullopt;
  }
  Layer layer{.input_norm = input_norm->weight,
              .post_norm = post_norm->weight,
              .gate = map_of(mlp->gate_proj),
              .up = map_of(mlp->up_proj),
              .down = map_of(mlp->down_proj),
              .poly = mlp->act_fn};
  if (!take_attention(*from.self_attn, layer, reason)) return std::nullopt;
  return layer;
}

void StepModel::set_sizes() {
  const nn::StepAttention& a = layers_.front().attention;
  const bool one_query = a.sizes.query_heads == a.sizes.heads;
  widths_ = {.hidden = embedding_.size(1),
             .inner = layers_.front().gate.weight.size(0),
             .vocabulary = head_.size(0),
             .queries = (one_query ? 1 : 2) * a.sizes.heads * a.sizes.head_dim,
             .outputs = a.sizes.heads * a.sizes.value_dim,
             .heads = a.sizes.heads};
  cached_ = {.kv_heads = a.sizes.kv_heads,
             .keys = a.sizes.key_heads / a.sizes.kv_heads,
             .head_dim = a.sizes.head_dim,
             .value_dim = a.sizes.value_dim};
  q_slots_ = slots_of(a).to(embedding_.device());
}

/// Returns what the kernels do not support; empty if they support everything.
std::string StepModel::unsupported() const {
  const auto type = embedding_.scalar_type();
  const bool on_host = embedding_.is_cpu();
  const bool half = type == torch::kFloat16 && !on_host;
  if (type != torch::kFloat32 && type != torch::kBFloat16 && !half) {
    return on_host ? "its parameters are neither float32 nor bfloat16"
                   : "its parameters are neither float32, bfloat16 nor float16";
  }
  const auto fits = [&](const Tensor& t) {
    return !t.defined() ||
           (t.scalar_type() == type && t.is_contiguous() && t.device() == embedding_.device() &&
            reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0);
  };
  const nn::StepAttention& first = layers_.front().attention;
  for (const Layer& layer : layers_) {
    const nn::StepAttention& a = layer.attention;
    for (const Map& map : {a.q, a.k, a.v, a.out, a.lambda_proj, layer.gate, layer.up, layer.down}) {
      if (!fits(map.weight) || !fits(map.bias)) return "its parameters differ in type or device";
    }
    if (layer.poly && kernels_->poly_gate == nullptr) return "its activation is PolyNorm";
    if (layer.poly && (!fits(layer.poly->weight) || !fits(layer.poly->bias))) {
      return "its parameters differ in type or device";
    }
    if (!layer.input_norm.defined() || !layer.post_norm.defined() || !fits(layer.input_norm) ||
        !fits(layer.post_norm)) {
      return "its norms have no weights of the model's type";
    }
    if (a.kind != first.kind || a.sizes.heads != first.sizes.heads ||
        a.sizes.kv_heads != first.sizes.kv_heads || a.sizes.head_dim != first.sizes.head_dim ||
        a.halves != first.halves || a.noise_heads != first.noise_heads ||
        layer.gate.weight.size(0) != widths_.inner) {
      return "its layers differ in shape";
    }
    if (!on_host && a.rotary->rotation().width % 8 != 0) {
      return "its rotary width is not a multiple of 8";
    }
  }
  if (!fits(head_) || !fits(last_norm_)) return "its parameters differ in type or device";
  const Dtype dtype = type == torch::kFloat32   ? Dtype::kFloat32
                      : type == torch::kFloat16 ? Dtype::kFloat16
                                                : Dtype::kBFloat16;
  if (!kernels_->takes_attend(dtype, cached_.head_dim, cached_.value_dim)) {
    return on_host ? "the CPU kernels are switched off" : "its heads are wider than 128";
  }
  if (on_host) return "";
  for (const int64_t width : {widths_.hidden, widths_.inner, widths_.outputs}) {
    if (width % 32 != 0) return "a width of " + std::to_string(width) + " is no multiple of 32";
  }
  if (widths_.hidden / 8 > token::Residual::kMaxParts) {
    return "its hidden size is above " + std::to_string(token::Residual::kMaxParts * 8);
  }
  if (cached_.head_dim % 8 != 0 || cached_.value_dim % 8 != 0) {
    return "the width of its heads is no multiple of 8";
  }
  return "";
}

bool StepModel::reserve_positions(int64_t count) {
  if (count <= positions_) return false;
  const auto like = torch::TensorOptions().device(embedding_.device()).dtype(torch::kFloat32);
  for (size_t i = 0; i < layers_.size(); ++i) {
    nn::RotaryImpl& rotary = *layers_[i].attention.rotary;
    if (rotary.rotation().width == 0) continue;
    auto [cos, sin] = rotary.table(torch::arange(count, like.dtype(torch::kLong)), like);
    layers_[i].angles = {cos.contiguous(), sin.contiguous()};
    const nn::RotaryTable& first = layers_[0].angles;
    if (i > 0 && first.cos.defined() && first.cos.sizes() == cos.sizes() &&
        torch::equal(first.cos, cos) && torch::equal(first.sin, sin)) {
      layers_[i].angles = first;
    }
  }
  positions_ = count;
  return true;
}

Tensor StepModel::cached_keys(const Tensor& k) const {
  if (cached_.keys == 1) return k.unsqueeze(2);
  if (!layers_.front().attention.halves) return k.unflatten(1, {cached_.kv_heads, 2});
  return k.unflatten(1, {2, cached_.kv_heads}).transpose(1, 2);
}

Tensor StepModel::module_keys(const Tensor& k) const {
  if (cached_.keys == 1) return k.squeeze(2);
  if (!layers_.front().attention.halves) return k.flatten(1, 2);
  return k.transpose(1, 2).flatten(1, 2);
}

token::Projection StepModel::projection(const Layer& layer, const StepBuffers& buffers) const {
  const nn::StepAttention& a = layer.attention;
  const RotateOptions rotation = a.rotary->rotation();
  return {.q = matrix_of(a.q),
          .k = matrix_of(a.k),
          .v = matrix_of(a.v),
          .lambda = matrix_of(a.lambda_proj),
          .head_dim = static_cast<int>(cached_.head_dim),
          .value_dim = static_cast<int>(cached_.value_dim),
          .kv_heads = static_cast<int>(cached_.kv_heads),
          .key_heads = static_cast<int>(cached_.kv_heads * cached_.keys),
          .halves = a.halves,
          .q_slots = q_slots_.const_data_ptr<int32_t>(),
          .q_out = buffers.q.mutable_data_ptr(),
          .q_width = static_cast<int>(widths_.queries),
          .lambda_out = buffers.lambda.mutable_data_ptr<float>(),
          .lambda_factor = static_cast<float>(a.lambda_factor),
          .cos = static_cast<const float*>(data_of(layer.angles.cos)),
          .sin = static_cast<const float*>(data_of(layer.angles.sin)),
          .rotary_width = static_cast<int>(rotation.width),
          .interleaved = rotation.interleaved};
}

ForwardParams StepModel::attention_params(int64_t index, const StepBuffers& buffers,
                                          const PagedCache& cache, int64_t rows,
                                          int64_t capacity) const {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const nn::StepAttention& a = layer.attention;
  const token::Cache pages = cache.layer(index);
  const int64_t d = cached_.head_dim, dv = cached_.value_dim, heads = a.sizes.heads;
  const int64_t bytes = embedding_.element_size();
  ForwardParams p;
  p.dtype = buffers.batch(rows).dtype;
  p.batch = rows;
  p.heads = heads;
  p.kv_heads = cached_.kv_heads;
  p.seq_q = 1;
  p.seq_k = capacity;
  p.head_dim = d;
  p.value_dim = dv;
  const auto* q = static_cast<const char*>(buffers.q.const_data_ptr());
  const bool two_queries = widths_.queries == 2 * heads * d;
  p.q1 = {q, widths_.queries, widths_.queries, d};
  p.q2 = {q + (two_queries ? heads * d * bytes : 0), widths_.queries, widths_.queries, d};
  const auto* kv = static_cast<const char*>(pages.pages);
  const auto view = [&](int64_t column) {
    return View<const void>{kv + column * bytes, pages.page_stride, pages.token_stride,
                            pages.head_stride};
  };
  p.k1 = view(0);
  p.k2 = view(cached_.keys == 2 ? d : 0);
  p.v = view(cached_.keys * d);
  if (a.lambda.defined()) {
    p.lambda = {a.lambda.const_data_ptr(), 0, 0, 0};
  } else {
    p.lambda = {buffers.lambda.const_data_ptr(), heads, heads, 1};
  }
  p.scale = a.scale;
  p.scale2 = a.scale2;
  p.causal = true;
  if (a.window) p.window = Window::last(*a.window);
  p.key_lengths = buffers.lengths.const_data_ptr<int32_t>();
  p.align_to_key_lengths = true;
  p.pages = {buffers.table.const_data_ptr<int32_t>(), buffers.table_pages, cache.page_size()};
  p.epilogue = {.norm = a.norm_eps.has_value(),
                .norm_eps = a.norm_eps.value_or(0.0),
                .norm_weight = data_of(layer.head_norm),
                .out_scale = a.sizes.out_scale};
  p.out = {buffers.heads.mutable_data_ptr(), heads * dv, heads * dv, dv};
  return p;
}

size_t StepModel::workspace_bytes(const StepBuffers& buffers, const PagedCache& cache, int64_t rows,
                                  int64_t capacity) const {
  return kernels_->attend_workspace_bytes(attention_params(0, buffers, cache, rows, capacity));
}

void StepModel::enqueue(const StepBuffers& buffers, const PagedCache& cache, int64_t rows,
                        int64_t capacity, void* workspace, token::Stream stream) const {
  const token::Batch batch = buffers.batch(rows);
  const token::Residual residual = buffers.residual();
  const auto norm = [&](const Tensor& weight) { return token::Norm{data_of(weight), norm_eps_}; };
  kernels_->embed(batch, data_of(embedding_), norm(layers_.front().input_norm), residual, stream);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const auto index = static_cast<int64_t>(i);
    token::Cache pages = cache.layer(index);
    pages.table = buffers.table.const_data_ptr<int32_t>();
    pages.table_stride = static_cast<int>(buffers.table_pages);
    kernels_->project(batch, residual, norm_eps_, projection(layer, buffers), pages, stream);
    kernels_->attend(attention_params(index, buffers, cache, rows, capacity), workspace, stream);
    kernels_->add(batch, data_of(buffers.heads), static_cast<int>(widths_.outputs),
                  matrix_of(layer.attention.out), norm(layer.post_norm), residual, stream);
    void* const inner = buffers.inner.mutable_data_ptr();
    if (layer.poly) {
      const token::PolyNorm poly{data_of(layer.poly->weight), data_of(layer.poly->bias),
                                 static_cast<float>(layer.poly->eps)};
      kernels_->poly_gate(batch, residual, norm_eps_, matrix_of(layer.gate), matrix_of(layer.up),
                          poly, inner, stream);
    } else {
      kernels_->gate(batch, residual, norm_eps_, matrix_of(layer.gate), matrix_of(layer.up), inner,
                     stream);
    }
    const Tensor& next = i + 1 < layers_.size() ? layers_[i + 1].input_norm : last_norm_;
    kernels_->add(batch, data_of(buffers.inner), static_cast<int>(widths_.inner),
                  matrix_of(layer.down), norm(next), residual, stream);
  }
  kernels_->logits(batch, residual, norm_eps_, matrix_of({head_, {}}),
                   buffers.logits.mutable_data_ptr<float>(), stream);
  kernels_->sample(batch, buffers.sampling(), stream);
}

}  // namespace diffattn::infer
