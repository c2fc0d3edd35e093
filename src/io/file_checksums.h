// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "diffattn/io/file.h"

namespace diffattn::io {

inline constexpr uint64_t kChecksumChunkBytes = uint64_t{16} << 20;

/// Computes the checksum of each file: the XXH64 of the XXH64s of its chunks of 16 MiB, which are
/// 8 bytes each in little-endian order. Threads hash the chunks, one thread for each processor, so
/// large files take as long as reading them. Throws Error if a file cannot be read.
std::vector<uint64_t> file_checksums(std::span<const File> files);

}  // namespace diffattn::io
