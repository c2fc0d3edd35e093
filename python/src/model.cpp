// SPDX-License-Identifier: Apache-2.0
#include "python/src/model.h"

#include "apps/diffattn/options/model_option.h"
#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"

namespace diffattn::python {

Model::Model(const std::string& folder, const std::string& dtype, const std::string& device)
    : text{folder, io::tokenizer_in(folder)} {
  model_ = models::load_causal_lm(folder, type_named(dtype));
  model_->to(torch::Device(device));
  refresh();
}

Model::Model(const std::string& folder, const Weights& weights) : text{folder} {
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
  refresh();
}

std::string Model::config() const {
  return models::model_config_text(model_->config, model_->head_weight().scalar_type());
}

Ids Model::stop_tokens() const {
  Ids stops;
  if (model_->config.eos_token_id) stops.push_back(*model_->config.eos_token_id);
  const auto& tokenizer = text.found;
  if (tokenizer && tokenizer->end_of_text()) stops.push_back(*tokenizer->end_of_text());
  return stops;
}

torch::Tensor Model::forward(const torch::Tensor& ids) {
  check_ids("ids", ids);
  nn::DecoderInput input;
  input.ids = ids.to(model_->head_weight().device());
  return model_->logits(model_->forward(input).last);
}

namespace {

/// Says which class opens a folder: "Model", "Classifier" or "TextToText".
std::string class_for(const std::string& folder) {
  const nn::ModelConfig config = models::read_model_config(folder);
  if (!config.labels.empty()) return "Classifier";
  return config.kind == nn::ModelKind::kEncoderDecoder ? "TextToText" : "Model";
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  auto model = m.class_<Model>("Model");
  model.def(torch::init<std::string, std::string, std::string>())
      .def_static("with_weights",
                  [](const std::string& folder, const Weights& weights) {
                    return c10::make_intrusive<Model>(folder, weights);
                  })
      .def_static("folder_of", app::model_folder)
      .def_static("class_for", class_for)
      .def("uses_steps", &Model::uses_steps)
      .def("reason", &Model::reason)
      .def("refresh", &Model::refresh)
      .def("forward", &Model::forward)
      .def("generate", &Model::generate);
  add_common_methods(model);
}

}  // namespace diffattn::python
