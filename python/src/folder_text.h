// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/custom_class.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"

namespace diffattn::python {

using Ids = std::vector<int64_t>;
using Weights = c10::Dict<std::string, torch::Tensor>;

/// The tokenizer of a model folder, if there is one.
struct FolderText {
  std::string folder;
  std::optional<io::Tokenizer> found = {};

  /// Throws io::Error if the folder has no tokenizer.
  const io::Tokenizer& tokenizer() const;
  Ids encode(const std::string& text) const;
  std::string decode(const Ids& ids) const;
};

/// Throws c10::Error that names `argument` if ids are not int64 [B, N].
void check_ids(const char* argument, const torch::Tensor& ids);

/// "float32", "bfloat16" or "float16".
torch::ScalarType type_named(const std::string& dtype);

/// Returns the parameters of a module with their names, each tied one once. Changes of the tensors
/// change the module.
Weights weights_of(const torch::nn::Module& module);

/// Adds the methods that every model has. `T` has `text`, `config()` and `module()`.
template <class T>
void add_common_methods(torch::class_<T>& methods) {
  using Self = c10::intrusive_ptr<T>;
  methods.def("config", [](const Self& self) { return self->config(); })
      .def("weights", [](const Self& self) { return weights_of(self->module()); })
      .def("has_tokenizer", [](const Self& self) { return self->text.found.has_value(); })
      .def("encode",
           [](const Self& self, const std::string& text) { return self->text.encode(text); })
      .def("decode", [](const Self& self, const Ids& ids) { return self->text.decode(ids); });
}

}  // namespace diffattn::python
