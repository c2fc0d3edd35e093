// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/io/dtype.h"
#include "diffattn/io/tensor_source.h"

/// Tensors in and out of safetensors files.
namespace diffattn::models {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// The file type of a tensor's elements; throws c10::Error for types the format lacks.
io::Dtype file_dtype(torch::ScalarType type);
torch::ScalarType torch_dtype(io::Dtype dtype);

/// One tensor of a file, on the CPU.
torch::Tensor read_tensor(const io::TensorSource& source, const std::string& name);

/// Writes the tensors to one file, which appears complete or not at all. Device memory is copied
/// one tensor at a time. A folder of more than `max_shard_bytes` is split, see io::ShardedWriter.
void write_tensor_file(const std::string& path, const NamedTensors& tensors,
                       const io::Metadata& metadata = {});
void write_tensor_folder(const std::string& folder, const NamedTensors& tensors,
                         std::uint64_t max_shard_bytes, const io::Metadata& metadata = {});

/// Copies the file's tensors into `tensors`, converting the type where it differs. Throws io::Error
/// when one is missing, has another shape or whole numbers where others are wanted, or when the
/// file has one that is not among them and not `ignored`; nothing has been copied then.
void read_tensors_into(const io::TensorSource& source, const NamedTensors& tensors,
                       const std::function<bool(const std::string&)>& ignored = {});

}  // namespace diffattn::models
