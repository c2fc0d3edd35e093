// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/safetensors.h"
#include "io/checked.h"
#include "io/safetensors/rules.h"

namespace diffattn::io {

// read() copies little-endian data from the file without conversion.
static_assert(std::endian::native == std::endian::little);

namespace {

SafetensorsHeader read_header(const File& file) {
  std::vector<std::byte> head(static_cast<size_t>(std::min<uint64_t>(file.size(), kLengthBytes)));
  file.read(0, head);
  // Throws for a length beyond the file before we allocate a buffer of that length.
  const uint64_t length = SafetensorsHeader::parse_length(head, file.size(), file.name());
  head.resize(static_cast<size_t>(*checked_add(kLengthBytes, length)));
  file.read(0, head);
  return SafetensorsHeader::parse(head, file.size(), file.name());
}

}  // namespace

SafetensorsReader SafetensorsReader::open(const std::string& path) {
  return SafetensorsReader(File::open(path));
}

SafetensorsReader::SafetensorsReader(File file)
    : file_(std::move(file)), header_(read_header(file_)) {}

std::vector<std::string> SafetensorsReader::names() const {
  std::vector<std::string> names;
  names.reserve(header_.tensors().size());
  for (const TensorInfo& info : header_.tensors()) names.push_back(info.name);
  return names;
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const noexcept {
  return header_.find(name);
}

void SafetensorsReader::read(const TensorInfo& info, std::span<std::byte> out) const {
  const TensorInfo& own = at(info.name);
  if (out.size() != own.bytes()) {
    throw Error(name(), "tensor " + in_quotes(own.name) + ": expected a buffer of " +
                            std::to_string(own.bytes()) + " bytes, got one of " +
                            std::to_string(out.size()));
  }
  const auto offset = checked_add(header_.data_begin(), own.begin);
  if (!offset) throw Error(name(), "tensor " + in_quotes(own.name) + ": offset beyond 2^64");
  file_.read(*offset, out);
}

const TensorInfo& TensorSource::at(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) {
    throw Error(this->name(), "expected a tensor named " + in_quotes(name) + ", got none");
  }
  return *info;
}

const TensorInfo& TensorSource::require(std::string_view name, Dtype dtype) const {
  const TensorInfo& info = at(name);
  if (info.dtype != dtype) {
    throw Error(this->name(), "tensor " + in_quotes(name) + ": expected dtype " +
                                  std::string(dtype_name(dtype)) + ", got " +
                                  std::string(dtype_name(info.dtype)));
  }
  return info;
}

const TensorInfo& TensorSource::require(std::string_view name, Dtype dtype,
                                        std::span<const int64_t> shape) const {
  const TensorInfo& info = require(name, dtype);
  if (!std::equal(shape.begin(), shape.end(), info.shape.begin(), info.shape.end())) {
    throw Error(this->name(), "tensor " + in_quotes(name) + ": expected shape " +
                                  shape_text(shape) + ", got " + shape_text(info.shape));
  }
  return info;
}

std::vector<std::byte> TensorSource::read_bytes(std::string_view name) const {
  const TensorInfo& info = at(name);
  std::vector<std::byte> data(static_cast<size_t>(info.bytes()));
  read(info, data);
  return data;
}

void TensorSource::read_into(std::string_view name, Dtype dtype, std::span<std::byte> out) const {
  read(require(name, dtype), out);
}

}  // namespace diffattn::io
