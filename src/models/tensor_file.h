// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/io/dtype.h"
#include "diffattn/io/tensor_source.h"

/// Reads and writes tensors in safetensors files.
namespace diffattn::models {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// Converts element types. Throws diffattn::Error for a type that the other side does not have.
io::Dtype file_dtype(torch::ScalarType type);
torch::ScalarType torch_dtype(io::Dtype dtype);

/// Reads one tensor, on the CPU.
torch::Tensor read_tensor(const io::TensorSource& source, const std::string& name);

/// Writes the tensors to one file, or to a folder with shards of at most `max_shard_bytes` (see
/// io::ShardedWriter). Files appear only when they are complete. Tensors on a GPU are copied to the
/// host one at a time.
void write_tensor_file(const std::string& path, const NamedTensors& tensors,
                       const io::Metadata& metadata = {});
void write_tensor_folder(const std::string& folder, const NamedTensors& tensors,
                         uint64_t max_shard_bytes, const io::Metadata& metadata = {});

/// Copies the tensors of a file into `tensors` and converts their types. Before it copies anything,
/// it throws io::Error if a tensor is missing, has another shape, holds integers instead of
/// floating-point numbers, or is not in `tensors` and not `ignored`.
void read_tensors_into(const io::TensorSource& source, const NamedTensors& tensors,
                       const std::function<bool(const std::string&)>& ignored = {});

}  // namespace diffattn::models
