// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diffattn/io/error.h"
#include "diffattn/io/safetensors.h"
#include "io/checked.h"
#include "io/json_events.h"
#include "io/safetensors/rules.h"

// Parses the safetensors header and checks each tensor. header.cpp checks the names and the layout
// of all tensors together.

namespace diffattn::io {

/// A tensor of the header and the position of its name in the JSON text.
struct Entry {
  TensorInfo info;
  uint32_t position = 0;
};

/// Reads the header directly into entries. A JSON document in between would take gigabytes for a
/// hostile header of 100 MB. Headers nest no deeper than a shape, so one state is enough.
class HeaderEvents final : public JsonEvents {
 public:
  HeaderEvents(std::string_view text, const std::string& file)
      : JsonEvents(text, file, kLengthBytes) {}

  std::vector<Entry> entries;
  Metadata metadata;

  bool start_object(size_t) override {
    if (state_ == State::kRoot) return enter(State::kTensorName);
    if (state_ == State::kTensor) return enter(State::kField);
    if (state_ == State::kMetadata) return enter(State::kMetadataKey);
    unexpected();
  }

  bool key(string_t& name) override {
    if (state_ == State::kTensorName) {
      if (name == kMetadataKey) {
        if (std::exchange(has_metadata_, true)) fail("one __metadata__", "a second");
        return enter(State::kMetadata);
      }
      return begin_tensor(name);
    }
    if (state_ == State::kField) return begin_field(name);
    metadata_key_ = name;  // kMetadataKey: the parser calls key() inside objects only
    return enter(State::kMetadataText);
  }

  bool end_object() override {
    if (state_ == State::kField) {
      end_tensor();
      return enter(State::kTensorName);
    }
    return enter(state_ == State::kMetadataKey ? State::kTensorName : State::kEnd);
  }

  bool string(string_t& text) override {
    if (state_ == State::kDtype) {
      const auto dtype = parse_dtype(text);
      if (!dtype) fail("a dtype of the format", in_quotes(text));
      current().dtype = *dtype;
      return enter(State::kField);
    }
    if (state_ != State::kMetadataText) unexpected();
    if (metadata.size() == kMaxMetadataEntries) {
      fail("at most " + std::to_string(kMaxMetadataEntries) + " metadata entries", "more");
    }
    if (!metadata.try_emplace(std::move(metadata_key_), std::move(text)).second) {
      fail("unique metadata keys", "a second value for one");
    }
    return enter(State::kMetadataKey);
  }

  bool start_array(size_t) override {
    if (state_ == State::kShape) return enter(State::kDimension);
    if (state_ == State::kOffsets) return enter(State::kOffset);
    unexpected();
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kDimension) return add_dimension(value);
    if (state_ != State::kOffset) unexpected();
    if (offsets_ == 2) fail("two data_offsets", "a third");
    (offsets_++ == 0 ? current().begin : current().end) = value;
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffset && offsets_ != 2) {
      fail("two data_offsets", std::to_string(offsets_));
    }
    return enter(State::kField);
  }

  bool null() override { unexpected(); }
  bool boolean(bool) override { unexpected(); }
  bool number_integer(number_integer_t) override { unexpected(); }

 protected:
  bool real(double) override { unexpected(); }

 private:
  // Each state is named for the token that it expects.
  enum class State {
    kRoot,
    kTensorName,
    kTensor,
    kField,
    kDtype,
    kShape,
    kDimension,
    kOffsets,
    kOffset,
    kMetadata,
    kMetadataKey,
    kMetadataText,
    kEnd,
  };
  enum Field : unsigned { kHasDtype = 1, kHasShape = 2, kHasOffsets = 4, kHasAll = 7 };

  bool enter(State state) {
    state_ = state;
    return true;
  }

  TensorInfo& current() { return entries.back().info; }

  bool begin_tensor(std::string& name) {
    if (entries.size() == kMaxTensors) {
      fail("at most " + std::to_string(kMaxTensors) + " tensors", "more");
    }
    if (const auto fault = name_fault(name)) fail_at(token_begin(), *fault);
    Entry& entry = entries.emplace_back();
    entry.info.name = std::move(name);
    entry.position = static_cast<uint32_t>(token_begin());  // header < 100 MB
    fields_ = 0;
    offsets_ = 0;
    rank_ = 0;
    return enter(State::kTensor);
  }

  bool begin_field(const std::string& name) {
    if (name == "dtype") return claim(kHasDtype, name, State::kDtype);
    if (name == "shape") return claim(kHasShape, name, State::kShape);
    if (name == "data_offsets") return claim(kHasOffsets, name, State::kOffsets);
    fail("the key dtype, shape or data_offsets", in_quotes(name));
  }

  bool claim(Field field, const std::string& name, State next) {
    if ((fields_ & field) != 0) fail("unique keys", "a second " + in_quotes(name));
    fields_ |= field;
    return enter(next);
  }

  bool add_dimension(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail("a dimension below 2^63", std::to_string(value));
    }
    if (rank_ == kMaxRank) fail("at most " + std::to_string(kMaxRank) + " dimensions", "more");
    dimensions_[rank_++] = static_cast<int64_t>(value);
    return true;
  }

  void end_tensor() {
    TensorInfo& info = current();
    if (fields_ != kHasAll) {
      const char* missing = (fields_ & kHasDtype) == 0   ? "dtype"
                            : (fields_ & kHasShape) == 0 ? "shape"
                                                         : "data_offsets";
      fail_tensor(std::string("expected dtype, shape and data_offsets, got no ") + missing);
    }
    info.shape.assign(dimensions_.begin(), dimensions_.begin() + rank_);
    const SizeOrFault size = size_of_tensor(info.dtype, info.shape);
    if (!size.fault.empty()) fail_tensor(size.fault);
    const auto length = checked_sub(info.end, info.begin);
    if (!length) {
      fail_tensor("expected data_offsets in order, got [" + std::to_string(info.begin) + ", " +
                  std::to_string(info.end) + "]");
    }
    if (*length != size.bytes) {
      fail_tensor("expected " + std::to_string(size.bytes) + " bytes of " +
                  std::string(dtype_name(info.dtype)) + " " + shape_text(info.shape) +
                  ", got data_offsets for " + std::to_string(*length));
    }
  }

  [[noreturn]] void fail_tensor(const std::string& message) {
    fail_at(entries.back().position, "tensor " + in_quotes(current().name) + ": " + message);
  }

  std::string wanted() const {
    switch (state_) {
      case State::kRoot: return "'{'";
      case State::kTensor: return "an object that describes a tensor";
      case State::kDtype: return "the name of a dtype";
      case State::kShape: return "an array of dimensions";
      case State::kOffsets: return "an array of two data_offsets";
      case State::kDimension:
      case State::kOffset: return "an integer of at least 0";
      case State::kMetadata: return "an object of strings";
      case State::kMetadataText:
        return "a string as value of the metadata key " + in_quotes(metadata_key_);
      default: return "a key";
    }
  }

  [[noreturn]] void unexpected() const { fail(wanted(), in_quotes(token())); }

  State state_ = State::kRoot;
  unsigned fields_ = 0;
  int offsets_ = 0;
  size_t rank_ = 0;
  std::array<int64_t, kMaxRank> dimensions_{};
  bool has_metadata_ = false;
  std::string metadata_key_;
};

}  // namespace diffattn::io
