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

/// The description of one tensor in a file. Its data is row-major, little-endian and packed.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // empty for a scalar; a 0 makes the tensor empty
  uint64_t begin = 0;          // first byte, counted from the start of the data part
  uint64_t end = 0;            // one past the last byte

  uint64_t bytes() const noexcept { return end - begin; }
};

/// Returns a shape as text, e.g. "[2, 3]".
std::string shape_text(std::span<const int64_t> shape);

using Metadata = std::map<std::string, std::string>;

/// Named tensors that can be read one by one, from one file or from several.
///
/// Implementations validate every TensorInfo against the file when they open it. Reading is
/// thread-safe. All members throw Error.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// The file or folder, for messages.
  virtual const std::string& name() const noexcept = 0;
  virtual const Metadata& metadata() const noexcept = 0;
  /// Returns the names in the order of their data on disk.
  virtual std::vector<std::string> names() const = 0;
  /// Returns the tensor of that name, or nullptr. The pointer is valid as long as the source.
  virtual const TensorInfo* find(std::string_view name) const noexcept = 0;
  /// Copies the tensor's data into out, which must have info.bytes() bytes. Looks info up by name
  /// again, so a stale or edited one cannot cause a read out of range.
  virtual void read(const TensorInfo& info, std::span<std::byte> out) const = 0;

  /// Like find(), but throws if there is no such tensor.
  const TensorInfo& at(std::string_view name) const;
  /// Like at(), but also throws if the dtype differs or, given a shape, if the shape differs.
  const TensorInfo& require(std::string_view name, Dtype dtype) const;
  const TensorInfo& require(std::string_view name, Dtype dtype,
                            std::span<const int64_t> shape) const;

  /// Returns the raw bytes of a tensor of any dtype.
  std::vector<std::byte> read_bytes(std::string_view name) const;
  /// Copies a tensor into out. Throws if its dtype or size differs.
  void read_into(std::string_view name, Dtype dtype, std::span<std::byte> out) const;
  /// Returns the elements as T. Throws if the dtype is not DtypeOf<T>.
  template <typename T>
  std::vector<T> read_as(std::string_view name) const {
    const TensorInfo& info = require(name, DtypeOf<T>::value);
    std::vector<T> values(static_cast<size_t>(info.bytes() / sizeof(T)));
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
