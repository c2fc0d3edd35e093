// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/error.h"
#include "diffattn/io/safetensors.h"

namespace diffattn::io::testing {

/// A temporary folder for one test. The destructor removes it and its files.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "diffattn_io_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  std::string put(std::string_view name, std::string_view content) const {
    const std::string path = *this / name;
    std::ofstream(path, std::ios::binary).write(content.data(), std::ssize(content));
    return path;
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string little_endian(uint64_t value) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(value >> (8 * i));
  return out;
}

/// Returns a file with the length of the header, the header and data_bytes zeros.
inline std::string safetensors_file(std::string_view header, size_t data_bytes) {
  return little_endian(header.size()).append(header).append(data_bytes, '\0');
}

/// Parses the header of a file in memory.
inline SafetensorsHeader parse_file(std::string_view content) {
  return SafetensorsHeader::parse(bytes_of(content), content.size(), "model.safetensors");
}

/// Returns what() of the io::Error that the call throws. Fails the test if the call throws nothing
/// or another exception.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an io::Error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline bool holds(const std::string& text, const std::string& fragment) {
  return text.find(fragment) != std::string::npos;
}

}  // namespace diffattn::io::testing
