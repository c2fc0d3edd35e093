// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/dtype.h"

namespace diffattn::io {

/// What a file says about one tensor. Row-major, little-endian, packed.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;  // empty for a scalar; a 0 makes the tensor empty
  std::uint64_t begin = 0;          // first byte, counted from the start of the data part
  std::uint64_t end = 0;            // one past the last byte

  std::uint64_t bytes() const noexcept { return end - begin; }
};

/// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

using Metadata = std::map<std::string, std::string>;

/// Named tensors that can be read one by one, from one file or from many.
///
/// Everything said about a tensor was checked against the file before the source was handed out.
/// Reading is thread-safe. All members throw Error.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// The file or folder, for messages.
  virtual const std::string& name() const noexcept = 0;
  virtual const Metadata& metadata() const noexcept = 0;
  /// Names in the order in which their data lies on disk.
  virtual std::vector<std::string> names() const = 0;
  /// The tensor of that name, or nullptr. Valid as long as the source.
  virtual const TensorInfo* find(std::string_view name) const noexcept = 0;
  /// Copies the tensor's data into out, which must have info.bytes() bytes. info is looked up
  /// again by name, so a stale or edited one cannot cause a read out of range.
  virtual void read(const TensorInfo& info, std::span<std::byte> out) const = 0;

  /// find() that throws when there is no such tensor.
  const TensorInfo& at(std::string_view name) const;
  /// at() that also refuses another dtype; with a shape, another shape too.
  const TensorInfo& require(std::string_view name, Dtype dtype) const;
  const TensorInfo& require(std::string_view name, Dtype dtype,
                            std::span<const std::int64_t> shape) const;

  /// The raw bytes of a tensor of any dtype.
  std::vector<std::byte> read_bytes(std::string_view name) const;
  /// Copies into memory of the caller; refuses a tensor of another dtype or size.
  void read_into(std::string_view name, Dtype dtype, std::span<std::byte> out) const;
  /// The elements as T; refuses a tensor whose dtype is not DtypeOf<T>.
  template <typename T>
  std::vector<T> read_as(std::string_view name) const {
    const TensorInfo& info = require(name, DtypeOf<T>::value);
    std::vector<T> values(static_cast<std::size_t>(info.bytes() / sizeof(T)));
    read(info, std::as_writable_bytes(std::span(values)));
    return values;
  }

 protected:
  TensorSource() = default;
  TensorSource(const TensorSource&) = default;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(const TensorSource&) = default;
  TensorSource& operator=(TensorSource&&) = default;
};

}  // namespace diffattn::io
