// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/input_stream.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "diffattn/io/error.h"

namespace diffattn::app {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 16;

std::string reason() { return std::generic_category().message(errno); }

}  // namespace

InputStream::InputStream(const std::string& path)
    : name_(path == "-" ? "standard input" : path), owned_(path != "-") {
  fd_ = owned_ ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY) : STDIN_FILENO;
  struct stat status = {};
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) {
    throw io::Error(name_, "expected a readable file or pipe, got: " + reason());
  }
  if (!S_ISDIR(status.st_mode)) return;
  if (owned_) ::close(fd_);
  throw io::Error(name_, "expected a file or a pipe, got a directory");
}

InputStream::~InputStream() {
  if (owned_) ::close(fd_);
}

size_t InputStream::read(std::span<char> out) {
  for (;;) {
    const ssize_t bytes = ::read(fd_, out.data(), out.size());
    if (bytes >= 0) return static_cast<size_t>(bytes);
    if (errno == EAGAIN) {  // another process has made the pipe non-blocking
      pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      throw io::Error(name_, "read failed: " + reason());
    }
  }
}

io::LineReader input_lines(const std::string& path) {
  const auto stream = std::make_shared<InputStream>(path);
  return {stream->name(), [stream](std::span<char> out) { return stream->read(out); }};
}

std::string input_text(const std::string& path, uint64_t max_bytes) {
  InputStream stream(path);
  std::string text;
  for (size_t bytes = 1; bytes > 0;) {
    const size_t before = text.size();
    text.resize(before + kPieceBytes);
    bytes = stream.read(std::span(text).subspan(before));
    text.resize(before + bytes);
    if (text.size() > max_bytes) {
      throw io::Error(stream.name(), fmt::format("expected at most {} bytes, got more", max_bytes));
    }
  }
  return text;
}

}  // namespace diffattn::app
