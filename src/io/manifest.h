// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace diffattn::io {

/// The list of a checkpoint's files with their sizes and checksums.
///
/// As JSON: {"format": "diffattn checkpoint", "version": 1, "checksum": "xxh64-16MiB", "ranks": 1,
/// "files": {"config.json": {"bytes": 812, "checksum": "44bc2cf5ad770999"}, ...}}.
struct Manifest {
  struct Entry {
    std::string path;  // below the folder, see is_manifest_path()
    uint64_t bytes = 0;
    uint64_t checksum = 0;  // see file_checksums()

    bool operator==(const Entry&) const = default;
  };

  int64_t ranks = 1;           // processes that wrote the checkpoint
  std::vector<Entry> entries;  // sorted by path

  std::string to_json() const;
  /// Parses untrusted text. Throws Error for another format or version, for a path that leaves the
  /// folder, and for values out of range. `file` is only used for messages.
  static Manifest parse(std::string_view text, const std::string& file);

  bool operator==(const Manifest&) const = default;
};

inline constexpr uint64_t kMaxManifestBytes = uint64_t{16} << 20;
inline constexpr size_t kMaxManifestFiles = size_t{1} << 16;
inline constexpr int64_t kMaxRanks = int64_t{1} << 20;

/// True for `name` or `folder/name` whose parts are [A-Za-z0-9._-]+ of at most 255 bytes and
/// neither "." nor "..".
bool is_manifest_path(std::string_view path) noexcept;

/// Returns 16 hexadecimal digits.
std::string checksum_text(uint64_t checksum);

/// Lists all files of `folder` and of its subfolders, with their checksums. It does not read the
/// files in `known`, which other processes have read. Throws Error if one of these is missing or
/// has another size.
Manifest manifest_of(const std::string& folder, int64_t ranks,
                     const std::vector<Manifest::Entry>& known = {});

/// Reads every file that the manifest lists. Throws Error that names the first one that is missing
/// or has another size or checksum.
void check_files(const std::string& folder, const Manifest& manifest);

}  // namespace diffattn::io
