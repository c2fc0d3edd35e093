// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/analyze/analyzed_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "apps/diffattn/analyze/layer_groups.h"
#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/nn/multihead_diff_attention.h"
#include "diffattn/train/classifier.h"
#include "diffattn/train/summarizer.h"

namespace diffattn::app {
namespace {

using AttentionLayers = std::vector<std::shared_ptr<nn::AttentionLayer>>;

/// Returns "a" for runs/a/model, "a step-20" for runs/a/checkpoints/step-20, else the folder name.
std::string name_of_model(const std::string& folder) {
  namespace fs = std::filesystem;
  fs::path path = fs::weakly_canonical(folder);
  const std::string last = path.filename().string();
  if (last == "model" && path.has_parent_path()) return path.parent_path().filename().string();
  const fs::path parent = path.parent_path();
  if (parent.filename() == "checkpoints") {
    return parent.parent_path().filename().string() + " " + last;
  }
  return last.empty() ? folder : last;
}

std::optional<double> lambda_init_of(const nn::AttentionLayer& layer) {
  const auto* diff = dynamic_cast<const nn::MultiheadDiffAttentionImpl*>(&layer);
  if (diff == nullptr || diff->options.kind() == nn::AttentionKind::kPlain) return std::nullopt;
  if (diff->options.lambda() == nn::LambdaKind::kToken) return std::nullopt;
  return diff->sizes.lambda_init;
}

AttentionLayers self_layers(const nn::StackImpl& stack) {
  AttentionLayers out;
  for (const auto& block : stack.layers) out.push_back(block->self_attn);
  return out;
}

AttentionLayers cross_layers(const nn::StackImpl& stack) {
  AttentionLayers out;
  for (const auto& block : stack.layers) out.push_back(block->cross_attn);
  return out;
}

}  // namespace

AnalyzedModel::AnalyzedModel(const std::string& given, const std::string& device,
                             const std::string& dtype)
    : folder(given),
      config(models::read_model_config(given)),
      tokenizer(io::tokenizer_in(given)),
      name(name_of_model(given)),
      device_(device) {
  module_ = load(dtype);
  module_->to(device_);
  module_->eval();
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : module_->parameters()) parameters += parameter.numel();
  description = fmt::format("{}, {} {}, {} parameters", config.attention, config.num_hidden_layers,
                            config.num_hidden_layers == 1 ? "layer" : "layers", parameters);
  const std::string groups = layer_groups_text(config);
  if (!groups.empty()) description += "; " + groups;
  if (config.attention == "dint") description += "; the maps leave out the averaged map";
}

std::shared_ptr<torch::nn::Module> AnalyzedModel::load(const std::string& dtype) {
  const auto type = dtype == "bfloat16" ? torch::kBFloat16 : torch::kFloat32;
  if (config.kind == nn::ModelKind::kEncoderDecoder) {
    encoder_decoder_ = models::load_encoder_decoder(folder, type);
    return encoder_decoder_.ptr();
  }
  if (!config.labels.empty()) {
    const train::Classifier classifier = train::load_classifier(folder, type);
    stack_ = classifier->model;
    return classifier.ptr();
  }
  if (config.kind == nn::ModelKind::kEncoder) {
    const nn::Encoder encoder = models::load_encoder(folder, type);
    stack_ = nn::Stack(std::static_pointer_cast<nn::StackImpl>(encoder.ptr()));
    return encoder.ptr();
  }
  const nn::CausalLM model = models::load_causal_lm(folder, type);
  stack_ = nn::Stack(std::static_pointer_cast<nn::StackImpl>(model->model.ptr()));
  return model.ptr();
}

torch::Tensor AnalyzedModel::tensor_of(const std::vector<int64_t>& ids,
                                       const std::string& given_as) const {
  const auto count = static_cast<int64_t>(ids.size());
  if (count == 0) throw io::Error(given_as, "expected at least one token, got none");
  if (count > config.max_position_embeddings) {
    throw io::Error(given_as,
                    fmt::format("expected at most {} tokens, the most that {} reads, got {}; "
                                "--truncate reads the beginning",
                                config.max_position_embeddings, folder, count));
  }
  for (const int64_t id : ids) {
    if (id >= 0 && id < config.vocab_size) continue;
    throw io::Error(given_as, fmt::format("expected ids below {}, the vocabulary of {}, got {}",
                                          config.vocab_size, folder, id));
  }
  return torch::tensor(ids, torch::kInt64).unsqueeze(0).to(device_);
}

void AnalyzedModel::append_parts(std::vector<ModelPart>& parts, const std::string& part_name,
                                 const Traces& traces, const AttentionLayers& layers) const {
  std::vector<analysis::LayerCalls> calls;
  try {
    calls = analysis::calls_of(traces);
  } catch (const diffattn::Error&) {
    throw io::Error(folder, "expected a model with attention, got one without");
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    ModelPart part;
    part.name = part_name;
    if (calls.size() > 1) {
      part.name += fmt::format("{}path {}", part_name.empty() ? "" : " ", i);
      part.path = static_cast<int64_t>(i);
    }
    part.calls = std::move(calls[i]);
    for (const auto& layer : layers) part.lambda_init.push_back(lambda_init_of(*layer));
    parts.push_back(std::move(part));
  }
}

std::vector<ModelPart> AnalyzedModel::read(const AnalyzedText& text) {
  const torch::NoGradGuard no_grad;
  std::vector<ModelPart> parts;
  Traces traces;
  nn::ModelInput input;
  input.ids = tensor_of(text.ids, text.given_as);
  input.traces = &traces;
  if (!encoder_decoder_) {
    stack_->forward(input);
    const AttentionLayers layers = self_layers(*stack_);
    for (const LayerGroup& group : layer_groups(config)) {
      Traces own;
      AttentionLayers own_layers;
      for (const size_t layer : group.layers) {
        own.push_back(std::move(traces[layer]));
        own_layers.push_back(layers[layer]);
      }
      append_parts(parts, group.name, own, own_layers);
    }
    return parts;
  }
  const nn::Encoded source = encoder_decoder_->encode(input);
  append_parts(parts, "encoder", traces, self_layers(*encoder_decoder_->encoder));
  Traces cross;
  nn::ModelInput written;
  written.ids = tensor_of(text.written, "summary");
  written.traces = &traces;
  written.cross_traces = &cross;
  encoder_decoder_->decode(written, source);
  const size_t encoder_parts = parts.size();
  append_parts(parts, "decoder", traces, self_layers(*encoder_decoder_->decoder));
  const size_t decoder_end = parts.size();
  append_parts(parts, "cross-attention", cross, cross_layers(*encoder_decoder_->decoder));
  for (size_t i = encoder_parts; i < parts.size(); ++i) {
    parts[i].written_rows = true;
    parts[i].written_columns = i < decoder_end;
  }
  return parts;
}

int64_t AnalyzedModel::first_written() const {
  return config.decoder_start_token_id.value_or(config.bos_token_id.value_or(0));
}

std::vector<int64_t> AnalyzedModel::write(const AnalyzedText& text, int64_t max_tokens) {
  tensor_of(text.ids, text.given_as);  // throws an error that names the option
  std::vector<int64_t> out = {first_written()};
  const int64_t more = std::min(max_tokens, config.max_position_embeddings) - 1;
  if (more < 1) return out;
  const auto texts = train::write_texts(*encoder_decoder_, {text.ids}, {.max_new_tokens = more});
  out.insert(out.end(), texts.front().begin(), texts.front().end());
  return out;
}

}  // namespace diffattn::app
