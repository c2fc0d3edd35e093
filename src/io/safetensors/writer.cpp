// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/json.h"
#include "diffattn/io/safetensors.h"
#include "io/checked.h"
#include "io/safetensors/rules.h"

namespace diffattn::io {
namespace {

std::string literal(std::string_view text, const std::string& file) {
  auto written = json_literal(text);
  if (!written) throw Error(file, "expected valid UTF-8, got " + in_quotes(text));
  return *std::move(written);
}

// Sorts the tensors by name and assigns consecutive data ranges.
std::vector<TensorInfo> lay_out(std::vector<TensorSpec> specs, const std::string& file) {
  if (specs.size() > kMaxTensors) {
    throw Error(file, "expected at most " + std::to_string(kMaxTensors) + " tensors, got " +
                          std::to_string(specs.size()));
  }
  std::sort(specs.begin(), specs.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  std::vector<TensorInfo> tensors;
  tensors.reserve(specs.size());
  uint64_t next = 0;
  for (TensorSpec& spec : specs) {
    if (const auto fault = name_fault(spec.name)) throw Error(file, *fault);
    if (spec.name == kMetadataKey) throw Error(file, "expected a tensor name, got __metadata__");
    if (!tensors.empty() && tensors.back().name == spec.name) {
      throw Error(file, "expected unique names, got " + in_quotes(spec.name) + " twice");
    }
    const auto end = checked_add(next, tensor_bytes(spec, file));
    if (!end) throw Error(file, "expected less than 2^64 bytes of tensors, got more");
    tensors.push_back({std::move(spec.name), spec.dtype, std::move(spec.shape), next, *end});
    next = *end;
  }
  return tensors;
}

std::string header_text(const std::vector<TensorInfo>& tensors, const Metadata& metadata,
                        const std::string& file) {
  std::string text = "{";
  const auto separate = [&text] { text += text.back() == '{' ? "" : ","; };
  if (metadata.size() > kMaxMetadataEntries) {
    throw Error(file, "expected at most " + std::to_string(kMaxMetadataEntries) +
                          " metadata entries, got " + std::to_string(metadata.size()));
  }
  if (!metadata.empty()) {
    text.append("\"").append(kMetadataKey).append("\":{");
    for (const auto& [key, value] : metadata) {
      separate();
      text += literal(key, file) + ":" + literal(value, file);
    }
    text += "}";
  }
  for (const TensorInfo& info : tensors) {
    separate();
    text += literal(info.name, file) + ":{\"dtype\":\"";
    text += dtype_name(info.dtype);
    text += "\",\"shape\":[";
    for (size_t i = 0; i < info.shape.size(); ++i) {
      if (i > 0) text += ',';
      text += std::to_string(info.shape[i]);
    }
    text += "],\"data_offsets\":[";
    text += std::to_string(info.begin) + "," + std::to_string(info.end) + "]}";
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw Error(file, "expected a header of at most " + std::to_string(kMaxHeaderBytes) +
                          " bytes, got " + std::to_string(text.size()));
  }
  return text;
}

std::array<char, kLengthBytes> little_endian(uint64_t value) {
  std::array<char, kLengthBytes> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                                     const Metadata& metadata)
    : file_(path), tensors_(lay_out(std::move(tensors), path)), written_(tensors_.size()) {
  const std::string header = header_text(tensors_, metadata, path);
  const auto length = little_endian(header.size());
  file_.append(std::string_view(length.data(), length.size()));
  file_.append(header);
  data_begin_ = kLengthBytes + header.size();
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> data) {
  const size_t index = index_of(name);
  const TensorInfo& info = tensors_[index];
  if (data.size() != info.bytes()) {
    throw Error(file_.path(), "tensor " + in_quotes(name) + ": expected " +
                                  std::to_string(info.bytes()) + " bytes, got " +
                                  std::to_string(data.size()));
  }
  if (data.empty()) return;
  if (written_[index] != 0) {
    throw Error(file_.path(), "tensor " + in_quotes(name) + ": expected one write, got a second");
  }
  append(name, data);
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> data) {
  const size_t index = index_of(name);
  const TensorInfo& info = tensors_[index];
  const auto end = checked_add(written_[index], data.size());
  if (!end || *end > info.bytes()) {
    throw Error(file_.path(), "tensor " + in_quotes(name) + ": expected " +
                                  std::to_string(info.bytes()) + " bytes in total, got " +
                                  std::to_string(data.size()) + " after " +
                                  std::to_string(written_[index]));
  }
  const auto begin = checked_add(data_begin_, info.begin);
  const auto offset = begin ? checked_add(*begin, written_[index]) : std::nullopt;
  if (!offset) throw Error(file_.path(), "expected a file below 2^64 bytes, got more");
  file_.write_at(*offset, data);
  written_[index] = *end;
}

void SafetensorsWriter::commit() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (written_[i] != tensors_[i].bytes()) {
      throw Error(file_.path(), "tensor " + in_quotes(tensors_[i].name) +
                                    ": expected data before commit, got " +
                                    (written_[i] == 0 ? "none" : "a part of it"));
    }
  }
  file_.commit();
}

size_t SafetensorsWriter::index_of(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& info, std::string_view key) { return info.name < key; });
  if (found == tensors_.end() || found->name != name) {
    throw Error(file_.path(), "expected a declared tensor, got " + in_quotes(name));
  }
  return static_cast<size_t>(found - tensors_.begin());
}

void SafetensorsWriter::check_dtype(std::string_view name, Dtype dtype) const {
  const TensorInfo& info = tensors_[index_of(name)];
  if (info.dtype != dtype) {
    throw Error(file_.path(), "tensor " + in_quotes(name) + ": expected dtype " +
                                  std::string(dtype_name(info.dtype)) + ", got " +
                                  std::string(dtype_name(dtype)));
  }
}

}  // namespace diffattn::io
