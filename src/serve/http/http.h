// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The HTTP server. It knows nothing of models: a handler gets each request and answers through a
// Reply, at once or later, from any thread.

namespace diffattn::serve {

struct HttpRequest {
  std::string method, path, body = {};
  std::string authorization = {}, origin = {}, host = {};  // headers; empty if absent
};

/// The answer to one request. Thread-safe. If the client has gone away, calls have no effect.
class Reply {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  virtual ~Reply() = default;

  /// Sends a complete answer. Call it at most once, and not after begin().
  virtual void send(int status, std::string body, std::string_view content_type,
                    Headers headers = {}) = 0;

  /// Begins an answer of status 200 that grows until end().
  virtual void begin(std::string_view content_type, Headers headers = {}) = 0;
  virtual void write(std::string_view text) = 0;
  virtual void end() = 0;

  /// Closes the connection without an answer, or in the middle of one. Needs no memory.
  virtual void abandon() noexcept = 0;

  /// Calls `gone` when the client goes away before the answer is complete; at once if it has.
  virtual void on_gone(std::function<void()> gone) = 0;
};

using Handler = std::function<void(HttpRequest&& request, const std::shared_ptr<Reply>& reply)>;

/// Returns false if the answer to a request with this head does not depend on its body. The server
/// then drops the body as it arrives, and the handler gets the request without it.
using NeedsBody = std::function<bool(const HttpRequest& head)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  unsigned threads = 4;
  unsigned max_connections = 1024;
  size_t max_header_bytes = 16384;  // of a request's head
  size_t max_body_bytes = size_t{4} << 20;
  std::chrono::seconds receive_timeout{60};  // from the opening or the last answer to a request
  std::chrono::seconds answer_timeout{660};  // for the client to have its answer
};

/// Listens and answers from listen() until it is destroyed. Requests that are still open then lose
/// their connections.
class HttpServer {
 public:
  HttpServer(
      const HttpOptions& options, Handler handler,
      NeedsBody needs_body = [](const HttpRequest&) { return true; });
  ~HttpServer();

  /// Calls the handler from now on, from threads of its own. Call it once. Throws diffattn::Error
  /// naming host and port if it cannot listen.
  void listen();

  /// Returns the port after listen().
  uint16_t port() const;
  /// Returns the number of open connections.
  size_t connections() const;
  /// Returns the number of requests whose answers have not left completely.
  size_t answering() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace diffattn::serve
