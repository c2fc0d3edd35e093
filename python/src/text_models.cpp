// SPDX-License-Identifier: Apache-2.0
#include "python/src/text_models.h"

#include <nlohmann/json.hpp>

#include "diffattn/models/model_folder.h"
#include "diffattn/train/summarizer.h"

namespace diffattn::python {
namespace {

torch::Device device_of(const torch::nn::Module& module) {
  return module.parameters().front().device();
}

nn::ModelInput padded(const torch::Tensor& ids, const torch::Tensor& lengths,
                      const torch::Device& device) {
  check_ids("ids", ids);
  TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == ids.size(0),
              "diffattn: argument 'lengths': expected one number for each of the ", ids.size(0),
              " rows, got ", lengths.sizes());
  nn::ModelInput input;
  input.ids = ids.to(device);
  input.mask.key_lengths(lengths.to(device));
  return input;
}

std::string config_text(const nn::ModelConfig& config, const torch::nn::Module& module) {
  return models::model_config_text(config, module.parameters().front().scalar_type());
}

}  // namespace

Classifier::Classifier(const std::string& folder, const std::string& dtype,
                       const std::string& device)
    : text{folder, io::tokenizer_in(folder)},
      model_(train::load_classifier(folder, type_named(dtype))) {
  model_->to(torch::Device(device));
}

std::string Classifier::config() const { return config_text(model_->config, *model_); }

torch::Tensor Classifier::forward(const torch::Tensor& ids, const torch::Tensor& lengths) {
  return model_->forward(padded(ids, lengths, device_of(*model_))).logits;
}

TextToText::TextToText(const std::string& folder, const std::string& dtype,
                       const std::string& device)
    : text{folder, io::tokenizer_in(folder)},
      model_(models::load_encoder_decoder(folder, type_named(dtype))) {
  model_->to(torch::Device(device));
}

std::string TextToText::config() const { return config_text(model_->config, *model_); }

torch::Tensor TextToText::forward(const torch::Tensor& sources, const torch::Tensor& lengths,
                                  const torch::Tensor& targets) {
  check_ids("targets", targets);
  const auto device = device_of(*model_);
  const nn::Encoded encoded = model_->encode(padded(sources, lengths, device));
  nn::ModelInput input;
  input.ids = targets.to(device);
  return model_->logits(model_->decode(input, encoded).last);
}

std::vector<Ids> TextToText::generate(const std::vector<Ids>& sources, const std::string& options) {
  const auto parsed = nlohmann::json::parse(options);
  return train::write_texts(*model_, sources,
                            {.max_new_tokens = parsed.at("max_new_tokens"),
                             .beams = parsed.at("beams"),
                             .length_penalty = parsed.at("length_penalty"),
                             .no_repeat_ngram = parsed.at("no_repeat_ngram")});
}

TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  auto classifier = m.class_<Classifier>("Classifier");
  add_common_methods(classifier.def(torch::init<std::string, std::string, std::string>())
                         .def("forward", &Classifier::forward));
  auto text_to_text = m.class_<TextToText>("TextToText");
  add_common_methods(text_to_text.def(torch::init<std::string, std::string, std::string>())
                         .def("forward", &TextToText::forward)
                         .def("generate", &TextToText::generate));
}

}  // namespace diffattn::python
