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

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
inline constexpr std::size_t kMaxRank = 8;
inline constexpr std::size_t kMaxTensorNameBytes = 1024;
inline constexpr std::size_t kMaxMetadataEntries = std::size_t{1} << 16;

/// A header that passed every check; see parse().
class SafetensorsHeader {
 public:
  /// Parses and validates the front of a file. head must hold the first 8 + N bytes (more is
  /// fine, less only if the file itself is shorter); file_size is the size of the whole file.
  ///
  /// Refused with Error: a length beyond the limit or the file; anything parse_json() refuses;
  /// unknown, missing or repeated fields; offsets and dimensions that are not integers in range;
  /// sizes that overflow, are not whole bytes or differ from the data range; tensors that
  /// overlap, leave gaps, or do not end exactly at the end of the file; names that repeat, are
  /// empty, too long or hold control characters; rank and counts beyond the limits above.
  /// Whitespace before the '{' is accepted, as by the reference implementation.
  static SafetensorsHeader parse(std::span<const std::byte> head, std::uint64_t file_size,
                                 const std::string& file);

  /// N, checked against the limit and the file's size. first must hold the first 8 bytes.
  static std::uint64_t parse_length(std::span<const std::byte> first, std::uint64_t file_size,
                                    const std::string& file);

  /// Ordered by offset.
  const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  const Metadata& metadata() const noexcept { return metadata_; }
  const TensorInfo* find(std::string_view name) const noexcept;
  /// Where in the file the data part begins: 8 + N.
  std::uint64_t data_begin() const noexcept { return data_begin_; }

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<std::uint32_t> by_name_;  // indices into tensors_, sorted by name
  Metadata metadata_;
  std::uint64_t data_begin_ = 0;
};

/// One .safetensors file, validated when opened; data is read on request.
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
  std::vector<std::int64_t> shape;
};

/// Bytes of a tensor of that dtype and shape; throws Error (about file) where the limits, 64 bits
/// or whole bytes do not allow one.
std::uint64_t tensor_bytes(const TensorSpec& spec, const std::string& file);

/// Writes one .safetensors file, which appears at commit() or not at all (see AtomicFile).
///
/// All tensors are declared first; data may then come in any order, one call per tensor. The file
/// is a function of its content alone: names sorted, header starting with '{' and padded with
/// spaces to a multiple of 8.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                    const Metadata& metadata = {});

  /// data must have exactly the declared size; each tensor is written once. Empty tensors need
  /// not be written.
  void write(std::string_view name, std::span<const std::byte> data);
  /// The next bytes of a tensor, for data that is never whole in memory.
  void append(std::string_view name, std::span<const std::byte> data);
  /// Like write(), and refuses a tensor not declared with DtypeOf<T>.
  template <typename T>
  void write_as(std::string_view name, std::span<const T> values) {
    check_dtype(name, DtypeOf<T>::value);
    write(name, std::as_bytes(values));
  }
  /// Throws Error, and leaves the old file alone, when a declared tensor was not written.
  void commit();

  const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }

 private:
  std::size_t index_of(std::string_view name) const;
  void check_dtype(std::string_view name, Dtype dtype) const;

  AtomicFile file_;
  std::vector<TensorInfo> tensors_;     // sorted by name, which is also their order in the file
  std::vector<std::uint64_t> written_;  // bytes of each
  std::uint64_t data_begin_ = 0;
};

}  // namespace diffattn::io
