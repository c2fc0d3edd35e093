// SPDX-License-Identifier: Apache-2.0
#include "python/src/folder_text.h"

#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"

namespace diffattn::python {

const io::Tokenizer& FolderText::tokenizer() const {
  if (!found) throw io::Error(folder, "has no tokenizer.json; pass token ids instead of text");
  return *found;
}

Ids FolderText::encode(const std::string& text) const {
  const auto ids = tokenizer().encode(text);
  return {ids.begin(), ids.end()};
}

std::string FolderText::decode(const Ids& ids) const {
  return tokenizer().decode(std::vector<io::TokenId>(ids.begin(), ids.end()));
}

void check_ids(const char* argument, const torch::Tensor& ids) {
  TORCH_CHECK(ids.dim() == 2 && ids.scalar_type() == torch::kLong, "diffattn: argument '", argument,
              "': expected int64 [batch, tokens], got ", ids.scalar_type(), " ", ids.sizes());
}

torch::ScalarType type_named(const std::string& dtype) {
  return dtype == "bfloat16"  ? torch::kBFloat16
         : dtype == "float16" ? torch::kFloat16
                              : torch::kFloat32;
}

Weights weights_of(const torch::nn::Module& module) {
  Weights weights;
  for (const auto& [name, tensor] : models::named_weights(module)) weights.insert(name, tensor);
  return weights;
}

}  // namespace diffattn::python
