// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "serve/http/open_reply.h"

namespace diffattn::serve {

/// Watches the open connections in a thread of its own. libmicrohttpd does not look at suspended
/// connections, and its timeout only ends connections on which nothing moves. The watch
///   - drops replies whose client has closed its connection,
///   - closes connections between two requests when the client has closed them,
///   - closes connections that take longer than the limits to send a complete request, counted from
///     their opening or from their last answer, or to read an answer.
class Connections {
 public:
  using Clock = std::chrono::steady_clock;
  using Key = const MHD_Connection*;

  Connections(std::chrono::seconds receive_limit, std::chrono::seconds answer_limit);
  ~Connections();

  void opened(Key connection, int socket);
  void closed(Key connection);
  /// A complete request arrived, and its reply begins.
  void begin(Key connection, const std::shared_ptr<OpenReply>& reply);
  /// The request is over; the connection may bring another one.
  void finish(Key connection);
  /// Drops all replies that are not complete, and those that begin from now on, so that no
  /// connection is suspended any more.
  void drop_all();

  size_t size() const;
  size_t answering() const;

 private:
  struct Open {
    int socket = -1;
    Clock::time_point since = {};           // of the connection or of its newest reply
    std::shared_ptr<OpenReply> reply = {};  // while a request is answered
  };
  void watch();
  void look();

  const std::chrono::seconds receive_limit_, answer_limit_;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false, dropping_ = false;
  std::map<Key, Open> open_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace diffattn::serve
