// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/encoder.h"

#include "nn/models/language_head.h"

namespace diffattn::nn {

EncoderImpl::EncoderImpl(const ModelConfig& model_config)
    : StackImpl(model_config, StackOptions().layers(model_config.num_hidden_layers).causal(false)),
      config(model_config) {
  initialize_model(*this, config, embed_tokens);
}

}  // namespace diffattn::nn
