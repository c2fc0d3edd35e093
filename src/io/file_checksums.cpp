// SPDX-License-Identifier: Apache-2.0
#include "io/file_checksums.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>

#include "io/hash.h"

namespace diffattn::io {
namespace {

constexpr size_t kBufferBytes = size_t{256} << 10;  // stays in the L2 cache between read and hash
constexpr size_t kMaxThreads = 16;

/// One chunk of one file.
struct Chunk {
  const File* file;
  uint64_t begin, end;
  uint64_t hash = 0;
};

std::vector<Chunk> chunks_of(std::span<const File> files) {
  std::vector<Chunk> chunks;
  for (const File& file : files) {
    for (uint64_t begin = 0; begin < file.size(); begin += kChecksumChunkBytes) {
      chunks.push_back({&file, begin, std::min(begin + kChecksumChunkBytes, file.size())});
    }
  }
  return chunks;
}

void hash_chunk(Chunk& chunk, std::vector<std::byte>& buffer) {
  Hash64 hash;
  for (uint64_t at = chunk.begin; at < chunk.end; at += buffer.size()) {
    const std::span part(buffer.data(), std::min<uint64_t>(buffer.size(), chunk.end - at));
    chunk.file->read(at, part);
    hash.update(part);
  }
  chunk.hash = hash.digest();
}

/// Hashes all chunks on several threads. Rethrows the first exception of a thread.
void hash_chunks(std::vector<Chunk>& chunks) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex guard;
  const auto work = [&] {
    try {
      std::vector<std::byte> buffer(kBufferBytes);
      for (size_t i = next++; i < chunks.size(); i = next++) hash_chunk(chunks[i], buffer);
    } catch (...) {
      const std::lock_guard lock(guard);
      if (!failure) failure = std::current_exception();
    }
  };
  const size_t threads =
      std::min({chunks.size(), size_t{std::thread::hardware_concurrency()}, kMaxThreads});
  {
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

std::vector<uint64_t> file_checksums(std::span<const File> files) {
  std::vector<Chunk> chunks = chunks_of(files);
  hash_chunks(chunks);
  std::vector<uint64_t> checksums;
  auto chunk = chunks.begin();
  for (const File& file : files) {
    Hash64 hash;
    for (; chunk != chunks.end() && chunk->file == &file; ++chunk) {
      hash.update(std::as_bytes(std::span(&chunk->hash, 1)));
    }
    checksums.push_back(hash.digest());
  }
  return checksums;
}

}  // namespace diffattn::io
