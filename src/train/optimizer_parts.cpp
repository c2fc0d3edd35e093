// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer_parts.h"

#include <fmt/format.h>

#include "diffattn/io/error.h"
#include "models/tensor_file.h"

namespace diffattn::train {

using torch::Tensor;

OptimizerParts::OptimizerParts(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) files_.push_back(io::SafetensorsReader::open(path));
}

Tensor OptimizerParts::read(const std::string& name, int64_t count) const {
  std::vector<Tensor> pieces;
  int64_t found = 0;
  for (const io::SafetensorsReader& file : files_) {
    if (file.find(name) == nullptr) continue;
    pieces.push_back(models::read_tensor(file, name).flatten());
    found += pieces.back().numel();
    if (name.ends_with(".step")) break;  // every part has it
  }
  if (found != count) {
    throw io::Error(files_.front().name(),
                    fmt::format("tensor {}: expected {} elements in this file and those of the "
                                "other ranks ({} files), got {}",
                                io::in_quotes(name), count, files_.size(), found));
  }
  return pieces.size() == 1 ? pieces.front() : torch::cat(pieces);
}

}  // namespace diffattn::train
