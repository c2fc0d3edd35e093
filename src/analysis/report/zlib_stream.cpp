// SPDX-License-Identifier: Apache-2.0
#include "analysis/report/zlib_stream.h"

#include <zlib.h>

#include <new>

namespace diffattn::analysis {

std::string zlib_stream(std::span<const uint8_t> bytes, Effort effort) {
  uLong size = compressBound(bytes.size());
  std::string stream(size, '\0');
  const int level = effort == Effort::kBest ? Z_BEST_COMPRESSION : Z_DEFAULT_COMPRESSION;
  // With a buffer of compressBound() bytes, compress2() fails only when it runs out of memory.
  if (compress2(reinterpret_cast<Bytef*>(stream.data()), &size, bytes.data(), bytes.size(),
                level) != Z_OK) {
    throw std::bad_alloc();
  }
  stream.resize(size);
  return stream;
}

}  // namespace diffattn::analysis
