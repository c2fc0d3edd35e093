// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/dtype.h"
#include "diffattn/io/file.h"
#include "diffattn/io/tensor_source.h"

// The safetensors format: 8 bytes little-endian header length N, N bytes of JSON, tensor data.

namespace diffattn::io {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the safetensors format
inline constexpr size_t kMaxTensors = size_t{1} << 20;
inline constexpr size_t kMaxRank = 8;
inline constexpr size_t kMaxTensorNameBytes = 1024;
inline constexpr size_t kMaxMetadataEntries = size_t{1} << 16;

/// The validated header of a file; see parse().
class SafetensorsHeader {
 public:
  /// Parses and validates the start of a file. head must hold the first 8 + N bytes, or the whole
  /// file if that is shorter; it may hold more. file_size is the size of the whole file.
  ///
  /// Throws Error for
  ///   - a length beyond the limit or the file, and anything that parse_json() rejects;
  ///   - unknown, missing or repeated fields;
  ///   - offsets and dimensions that are not integers in range;
  ///   - sizes that overflow, are not whole bytes or differ from the data range;
  ///   - tensors that overlap, leave gaps, or do not end exactly at the end of the file;
  ///   - names that repeat, are empty, too long or hold control characters;
  ///   - rank and counts beyond the limits above.
  /// Like the reference implementation, it accepts whitespace before the '{'.
  static SafetensorsHeader parse(std::span<const std::byte> head, uint64_t file_size,
                                 const std::string& file);

  /// Returns N. Throws Error if it exceeds the limit or the file's size. first must hold the first
  /// 8 bytes.
  static uint64_t parse_length(std::span<const std::byte> first, uint64_t file_size,
                               const std::string& file);

  /// Ordered by offset.
  const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  const Metadata& metadata() const noexcept { return metadata_; }
  const TensorInfo* find(std::string_view name) const noexcept;
  /// Offset of the data part in the file: 8 + N.
  uint64_t data_begin() const noexcept { return data_begin_; }

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
  Metadata metadata_;
  uint64_t data_begin_ = 0;
};

/// One .safetensors file. Opening it validates the header; read() reads the data of a tensor.
class SafetensorsReader final : public TensorSource {
 public:
  static SafetensorsReader open(const std::string& path);
  /// Takes over a file that is already open.
  explicit SafetensorsReader(File file);

  const std::string& name() const noexcept override { return file_.name(); }
  const Metadata& metadata() const noexcept override { return header_.metadata(); }
  std::vector<std::string> names() const override;
  const TensorInfo* find(std::string_view name) const noexcept override;
  void read(const TensorInfo& info, std::span<std::byte> out) const override;
  const SafetensorsHeader& header() const noexcept { return header_; }

 private:
  File file_;
  SafetensorsHeader header_;
};

/// A tensor to be written.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
};

/// Returns the size of a tensor in bytes. Throws Error (about file) if the rank exceeds the limit,
/// a size overflows 64 bits, or the tensor does not fill whole bytes.
uint64_t tensor_bytes(const TensorSpec& spec, const std::string& file);

/// Writes one .safetensors file, which becomes visible at commit() (see AtomicFile).
///
/// The constructor declares all tensors; their data may then come in any order. Equal content
/// gives equal files: names are sorted, and the header starts with '{' and is padded with spaces
/// to a multiple of 8 bytes.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                    const Metadata& metadata = {});

  /// Writes a whole tensor. data must have exactly the declared size, and each tensor is written
  /// once. Empty tensors need no call.
  void write(std::string_view name, std::span<const std::byte> data);
  /// Writes the next bytes of a tensor that is too large to be in memory as a whole.
  void append(std::string_view name, std::span<const std::byte> data);
  /// Like write(), but throws Error if the tensor was not declared with DtypeOf<T>.
  template <typename T>
  void write_as(std::string_view name, std::span<const T> values) {
    check_dtype(name, DtypeOf<T>::value);
    write(name, std::as_bytes(values));
  }
  /// Throws Error and leaves the old file unchanged if a declared tensor was not written.
  void commit();

  const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }

 private:
  size_t index_of(std::string_view name) const;
  void check_dtype(std::string_view name, Dtype dtype) const;

  AtomicFile file_;
  std::vector<TensorInfo> tensors_;  // sorted by name, which is also their order in the file
  std::vector<uint64_t> written_;    // bytes written of each tensor
  uint64_t data_begin_ = 0;
};

}  // namespace diffattn::io
