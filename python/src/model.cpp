// SPDX-License-Identifier: Apache-2.0
#include "python/src/model.h"

#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"

namespace diffattn::python {

Model::Model(const std::string& folder, const std::string& dtype, const std::string& device)
    : folder_(folder) {
  if (!models::read_model_config(folder).labels.empty()) {
    throw io::Error(folder, "expected a causal language model, got a classifier");
  }
  const auto type = dtype == "bfloat16"  ? torch::kBFloat16
                    : dtype == "float16" ? torch::kFloat16
                                         : torch::kFloat32;
  tokenizer_ = io::tokenizer_in(folder);
  model_ = models::load_causal_lm(folder, type);
  model_->to(torch::Device(device));
  generator_.emplace(model_);
}

Model::Model(const std::string& folder, const c10::Dict<std::string, torch::Tensor>& weights)
    : folder_(folder) {
  const torch::NoGradGuard no_grad;
  model_ = nn::CausalLM(models::read_model_config(folder));
  for (const auto& [name, parameter] : models::named_weights(*model_)) {
    const auto found = weights.find(name);
    if (found == weights.end()) {
      throw io::Error(folder, "expected a tensor " + name + " among the weights, got none");
    }
    const torch::Tensor& tensor = found->value();
    if (tensor.sizes() != parameter.sizes()) {
      throw io::Error(folder, c10::str("tensor ", name, ": expected shape ", parameter.sizes(),
                                       ", got ", tensor.sizes()));
    }
    torch::Tensor(parameter).set_data(tensor.detach());
  }
  model_->eval();
  generator_.emplace(model_);
}

std::string Model::config() const {
  return models::model_config_text(model_->config, model_->head_weight().scalar_type());
}

const io::Tokenizer& Model::tokenizer() const {
  if (!tokenizer_)
    throw io::Error(folder_, "has no tokenizer.json; pass token ids instead of text");
  return *tokenizer_;
}

Ids Model::encode(const std::string& text) const {
  const auto ids = tokenizer().encode(text);
  return {ids.begin(), ids.end()};
}

std::string Model::decode(const Ids& ids) const {
  const std::vector<io::TokenId> tokens(ids.begin(), ids.end());
  return tokenizer().decode(tokens);
}

Ids Model::stop_tokens() const {
  Ids stops;
  if (model_->config.eos_token_id) stops.push_back(*model_->config.eos_token_id);
  if (tokenizer_ && tokenizer_->end_of_text()) stops.push_back(*tokenizer_->end_of_text());
  return stops;
}

torch::Tensor Model::logits(const torch::Tensor& ids) {
  TORCH_CHECK(ids.dim() == 2 && ids.scalar_type() == torch::kLong,
              "diffattn: argument 'ids': expected int64 [batch, tokens], got ", ids.scalar_type(),
              " ", ids.sizes());
  const torch::NoGradGuard no_grad;
  nn::DecoderInput input;
  input.ids = ids.to(model_->head_weight().device());
  return model_->logits(model_->forward(input).last);
}

TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  m.class_<Model>("Model")
      .def(torch::init<std::string, std::string, std::string>())
      .def_static(
          "with_weights",
          [](const std::string& folder, const c10::Dict<std::string, torch::Tensor>& weights) {
            return c10::make_intrusive<Model>(folder, weights);
          })
      .def("uses_steps", &Model::uses_steps)
      .def("reason", &Model::reason)
      .def("config", &Model::config)
      .def("has_tokenizer", &Model::has_tokenizer)
      .def("encode", &Model::encode)
      .def("decode", &Model::decode)
      .def("logits", &Model::logits)
      .def("generate", &Model::generate);
}

}  // namespace diffattn::python
