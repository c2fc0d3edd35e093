// SPDX-License-Identifier: Apache-2.0
#include "serve/http/connections.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <new>
#include <vector>

namespace diffattn::serve {
namespace {

constexpr std::chrono::milliseconds kInterval{50};
/// Time for libmicrohttpd to read what a client sent before it closed its side, and to close ours.
constexpr std::chrono::seconds kClosingTime{1};

}  // namespace

Connections::Connections(std::chrono::seconds receive_limit, std::chrono::seconds answer_limit)
    : receive_limit_(receive_limit), answer_limit_(answer_limit), thread_([this] { watch(); }) {}

Connections::~Connections() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void Connections::opened(Key connection, int socket) {
  const std::lock_guard lock(mutex_);
  open_[connection] = {socket, Clock::now(), nullptr};
}

void Connections::closed(Key connection) {
  const std::lock_guard lock(mutex_);
  open_.erase(connection);
}

void Connections::begin(Key connection, const std::shared_ptr<OpenReply>& reply) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = open_.find(connection);
    if (at != open_.end()) {
      at->second.reply = reply;
      at->second.since = Clock::now();
    }
    // Without memory opened() has not noted the connection. drop_all() would not find its reply.
    if (!dropping_ && at != open_.end()) return;
  }
  reply->drop();
}

void Connections::finish(Key connection) {
  const std::lock_guard lock(mutex_);
  const auto at = open_.find(connection);
  if (at == open_.end()) return;
  at->second.reply.reset();
  at->second.since = Clock::now();
}

void Connections::drop_all() {
  std::vector<std::shared_ptr<OpenReply>> replies;
  {
    const std::lock_guard lock(mutex_);
    dropping_ = true;
    for (const auto& [connection, open] : open_) {
      if (open.reply) replies.push_back(open.reply);
    }
  }
  for (const auto& reply : replies) reply->drop();
}

size_t Connections::size() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

size_t Connections::answering() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::ranges::count_if(open_, [](const auto& item) { return item.second.reply != nullptr; }));
}

void Connections::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kInterval, [&] { return stopping_; })) {
    lock.unlock();
    try {
      look();
    } catch (const std::bad_alloc&) {  // the next look does what this one did not
    }
    lock.lock();
  }
}

void Connections::look() {
  std::vector<std::shared_ptr<OpenReply>> dropped;
  {
    const std::lock_guard lock(mutex_);  // no socket is closed meanwhile
    std::vector<pollfd> sockets;
    for (const auto& [connection, open] : open_) {
      sockets.push_back({.fd = open.socket, .events = POLLRDHUP, .revents = 0});
    }
    if (poll(sockets.data(), sockets.size(), 0) < 0) return;
    size_t i = 0;
    const auto now = Clock::now();
    for (const auto& [connection, open] : open_) {
      const bool gone = (sockets[i++].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
      const bool late = now - open.since > (open.reply ? answer_limit_ : receive_limit_);
      // libmicrohttpd misses the end of some connections and would keep them until its timeout.
      const bool missed = gone && !open.reply && now - open.since > kClosingTime;
      if (late || missed) shutdown(open.socket, SHUT_RDWR);
      if (open.reply && (gone || late)) dropped.push_back(open.reply);
    }
  }
  for (const auto& reply : dropped) reply->drop();
}

}  // namespace diffattn::serve
