// SPDX-License-Identifier: Apache-2.0
//
// A library that stands before libc (LD_PRELOAD) and makes a network slow and its messages short:
// every other call on a socket moves a few bytes only, and some calls wait. Nothing is lost, so
// correct programs compute the same. DIFFATTN_SHORT_NETWORK=FILE counts the shortened calls there.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr unsigned kDelayMicroseconds = 500;
constexpr uint64_t kDelayEvery = 64;  // calls
constexpr size_t kFewBytes = 1500;

std::atomic<uint64_t> seen{0};

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool is_socket(int fd) {
  const int before = errno;
  int type = 0;
  socklen_t size = sizeof(type);
  const bool yes = getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
  errno = before;
  return yes;
}

/// Leaves a mark in the file, from which the test learns that this library was in use.
void count_in_file() {
  static const char* const path = getenv("DIFFATTN_SHORT_NETWORK");
  if (path == nullptr) return;
  const int before = errno, fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd >= 0) {
    static auto* const plain_write = real<ssize_t(int, const void*, size_t)>("write");
    (void)!plain_write(fd, "x", 1);
    close(fd);
  }
  errno = before;
}

/// Returns how many of `bytes` a call on this file may move.
size_t allowed(int fd, size_t bytes) {
  if (bytes <= 1 || !is_socket(fd)) return bytes;
  const uint64_t number = seen.fetch_add(1);
  if (number % kDelayEvery == 0) {
    usleep(kDelayMicroseconds);
    count_in_file();
  }
  if (number % 2 == 0) return bytes;
  return std::min(bytes, 1 + static_cast<size_t>(number * 2654435761U) % kFewBytes);
}

/// Returns the first part of a list of blocks that is not empty, cut to what may move.
iovec shortened(int fd, const iovec* blocks, size_t count) {
  size_t i = 0;
  while (i + 1 < count && blocks[i].iov_len == 0) ++i;
  iovec one = blocks[i];
  one.iov_len = allowed(fd, one.iov_len);
  return one;
}

}  // namespace

extern "C" {

ssize_t send(int fd, const void* data, size_t size, int flags) {
  static auto* const call = real<decltype(send)>("send");
  return call(fd, data, allowed(fd, size), flags);
}

ssize_t recv(int fd, void* data, size_t size, int flags) {
  static auto* const call = real<decltype(recv)>("recv");
  return call(fd, data, (flags & MSG_WAITALL) != 0 ? size : allowed(fd, size), flags);
}

ssize_t read(int fd, void* data, size_t size) {
  static auto* const call = real<decltype(read)>("read");
  return call(fd, data, allowed(fd, size));
}

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const call = real<decltype(write)>("write");
  return call(fd, data, allowed(fd, size));
}

ssize_t writev(int fd, const iovec* blocks, int count) {
  static auto* const call = real<decltype(writev)>("writev");
  if (count < 1 || !is_socket(fd)) return call(fd, blocks, count);
  const iovec one = shortened(fd, blocks, static_cast<size_t>(count));
  return call(fd, &one, 1);
}

ssize_t readv(int fd, const iovec* blocks, int count) {
  static auto* const call = real<decltype(readv)>("readv");
  if (count < 1 || !is_socket(fd)) return call(fd, blocks, count);
  const iovec one = shortened(fd, blocks, static_cast<size_t>(count));
  return call(fd, &one, 1);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const call = real<decltype(sendmsg)>("sendmsg");
  if (message->msg_iovlen < 1 || message->msg_controllen > 0 || !is_socket(fd)) {
    return call(fd, message, flags);
  }
  iovec one = shortened(fd, message->msg_iov, message->msg_iovlen);
  msghdr part = *message;
  part.msg_iov = &one;
  part.msg_iovlen = 1;
  return call(fd, &part, flags);
}

}  // extern "C"
