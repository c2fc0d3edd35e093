// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/classifier.h"

#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"
#include "models/loaded_model.h"

namespace diffattn::train {

using torch::Tensor;

ClassifierImpl::ClassifierImpl(const nn::ModelConfig& given) : config(given) {
  if (config.labels.size() < 2) {
    throw_argument_error("labels", "at least 2", std::to_string(config.labels.size()));
  }
  const std::string& pooling = config.classifier_pooling;
  if (pooling != "cls" && pooling != "last" && pooling != "mean") {
    throw_argument_error("classifier_pooling", "cls, last or mean", "'" + pooling + "'");
  }
  if (config.kind == nn::ModelKind::kEncoderDecoder) {
    throw_argument_error("kind", "a decoder or an encoder", "an encoder-decoder");
  }
  const auto classes = static_cast<int64_t>(config.labels.size());
  const int64_t width =
      config.classifier_hidden_size > 0 ? config.classifier_hidden_size : config.hidden_size / 2;
  model = register_module("model",
                          nn::Stack(config, nn::StackOptions()
                                                .layers(config.num_hidden_layers)
                                                .causal(config.kind == nn::ModelKind::kDecoder)));
  auto head = register_module("classifier", std::make_shared<torch::nn::Module>());
  dense = head->register_module("dense", torch::nn::Linear(config.hidden_size, width));
  out_proj = head->register_module("out_proj", torch::nn::Linear(width, classes));
  nn::initialize_parameters(*this, config.initializer_range, config.lambda_std_dev);
}

Tensor ClassifierImpl::pool(const Tensor& hidden, const Tensor& lengths) const {
  if (config.classifier_pooling == "cls") return hidden.select(1, 0);
  if (config.classifier_pooling == "last") {
    const Tensor last = (lengths - 1).clamp_min(0).view({-1, 1, 1});
    return hidden.gather(1, last.expand({-1, 1, hidden.size(2)})).squeeze(1);
  }
  const Tensor columns = torch::arange(hidden.size(1), lengths.options());
  const Tensor valid = (columns.unsqueeze(0) < lengths.unsqueeze(1)).unsqueeze(-1);
  return hidden.masked_fill(~valid, 0).sum(1) / lengths.clamp_min(1).unsqueeze(1);
}

ClassifierOutput ClassifierImpl::forward(const nn::ModelInput& input) {
  const Tensor hidden = model->forward(input).last;
  const Tensor lengths = input.mask.key_lengths()
                             ? input.mask.key_lengths()->to(torch::kLong)
                             : torch::full({hidden.size(0)}, hidden.size(1), input.ids.options());
  Tensor x = torch::relu(dense(pool(hidden, lengths)));
  x = torch::dropout(x, config.classifier_dropout, is_training());
  return {out_proj(x), hidden};
}

Classifier load_classifier(const std::string& folder, torch::ScalarType dtype) {
  const nn::ModelConfig config = models::read_model_config(folder);
  if (config.labels.empty() || config.kind == nn::ModelKind::kEncoderDecoder) {
    throw io::Error(folder + "/config.json",
                    "key 'id2label': expected the classes of a classifier, got none");
  }
  return models::loaded_model<Classifier>(folder, config, dtype);
}

}  // namespace diffattn::train
