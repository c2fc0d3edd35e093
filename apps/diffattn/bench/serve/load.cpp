// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/serve/load.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/diffattn/bench/serve/event_reader.h"
#include "apps/diffattn/terminal/stop_signal.h"
#include "diffattn/error.h"
#include "diffattn/io/error.h"
#include "diffattn/train/run_config.h"

namespace diffattn::app {
namespace {

using Clock = std::chrono::steady_clock;

std::string request_text(const LocalAddress& address, const std::string& method,
                         const std::string& path, const std::string& api_key,
                         const std::string& body) {
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: " + address.host + ":" +
                     std::to_string(address.port) +
                     "\r\nConnection: close\r\nContent-Type: application/json\r\n";
  if (!api_key.empty()) text += "Authorization: Bearer " + api_key + "\r\n";
  return text + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

/// A connection with one request, which never blocks.
class Connection {
 public:
  Connection(const LocalAddress& address, std::string text) : text_(std::move(text)) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) !=
        0) {
      return;
    }
    socket_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(socket_, found->ai_addr, found->ai_addrlen) != 0) failed_ = true;
    freeaddrinfo(found);
    fcntl(socket_, F_SETFL, O_NONBLOCK);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (socket_ >= 0) close(socket_);
  }

  pollfd watch() const {
    const bool sends = sent_ < text_.size();
    return {.fd = socket_,
            .events = static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN),
            .revents = 0};
  }
  void send_more() {
    while (sent_ < text_.size()) {
      const ssize_t count =
          send(socket_, text_.data() + sent_, text_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0) return void(failed_ = errno != EAGAIN);
      sent_ += static_cast<size_t>(count);
    }
  }
  /// Reads what has come. Returns false at the end.
  template <class Take>
  bool receive(const Take& take) {
    std::array<char, 16384> buffer{};
    while (true) {
      const ssize_t count = recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EAGAIN) return true;
      if (count <= 0) return false;
      take(std::string_view(buffer.data(), static_cast<size_t>(count)));
    }
  }
  bool failed() const { return failed_ || socket_ < 0; }

 private:
  std::string text_;
  size_t sent_ = 0;
  int socket_ = -1;
  bool failed_ = false;
};

/// A request on its way.
struct Running {
  size_t index;
  Clock::time_point due;
  Connection connection;
  EventReader reader;
  Clock::time_point last = {};
  bool any = false;
};

double seconds_since(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

/// Takes an event of a stream.
void take_event(std::string_view data, Running& running, Outcome& outcome) {
  if (data == "[DONE]") return;
  const auto json = nlohmann::json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return void(outcome.error = "an event that is no JSON");
  if (json.contains("error")) return void(outcome.error = json["error"].dump());
  if (json.contains("usage") && json["usage"].is_object()) {
    outcome.tokens = json["usage"].value("completion_tokens", int64_t{0});
  }
  if (!json.contains("choices") || !json["choices"].is_array() || json["choices"].empty()) return;
  const auto now = Clock::now();
  if (!running.any) {
    outcome.first = std::chrono::duration<double>(now - running.due).count();
  } else {
    outcome.gaps.push_back(std::chrono::duration<double>(now - running.last).count());
  }
  running.any = true;
  running.last = now;
}

void finish(Running& running, Outcome& outcome) {
  outcome.status = running.reader.status();
  outcome.all = seconds_since(running.due);
  if (outcome.status == 0) outcome.error = "no answer";
  if (outcome.status != 200 && outcome.status != 0) outcome.error = running.reader.body();
  if (outcome.error.empty() && !running.reader.complete()) outcome.error = "the answer ended early";
}

}  // namespace

LocalAddress local_address(const std::string& url) {
  static constexpr std::string_view kScheme = "http://";
  const auto refuse = [&] {
    throw train::ConfigError("--url: expected http://HOST:PORT of this machine, got " +
                             io::in_quotes(url));
  };
  if (!url.starts_with(kScheme)) refuse();
  std::string rest = url.substr(kScheme.size());
  while (rest.ends_with('/')) rest.pop_back();
  if (rest.ends_with("/v1")) rest.resize(rest.size() - 3);
  const size_t colon = rest.rfind(':');
  LocalAddress address{rest.substr(0, colon), 80};
  if (colon != rest.npos) {
    char* end = nullptr;
    const unsigned long port = std::strtoul(rest.c_str() + colon + 1, &end, 10);
    if (*end != '\0' || port == 0 || port > 65535) refuse();
    address.port = static_cast<uint16_t>(port);
  }
  if (address.host != "localhost" && address.host != "[::1]" && !address.host.starts_with("127.")) {
    refuse();
  }
  if (address.host == "[::1]") address.host = "::1";
  return address;
}

LoadResult run_load(const LocalAddress& address, const Load& load) {
  LoadResult result;
  result.outcomes.resize(load.requests.size());
  std::vector<std::unique_ptr<Running>> running;
  const auto begin = Clock::now();
  size_t next = 0;
  while (next < load.requests.size() || !running.empty()) {
    check_interrupt();
    while (next < load.requests.size() && running.size() < load.clients &&
           seconds_since(begin) >= load.requests[next].at) {
      // An open loop counts from the time when the request was due, a closed one from now.
      const auto due = load.requests[next].at > 0
                           ? begin + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(load.requests[next].at))
                           : Clock::now();
      running.push_back(std::unique_ptr<Running>(
          new Running{next,
                      due,
                      {address, request_text(address, "POST", "/v1/completions", load.api_key,
                                             load.requests[next].body)},
                      {}}));
      running.back()->connection.send_more();
      ++next;
    }
    std::vector<pollfd> sockets;
    for (const auto& one : running) sockets.push_back(one->connection.watch());
    poll(sockets.data(), sockets.size(), next < load.requests.size() ? 1 : 50);
    for (size_t i = 0; i < running.size(); ++i) {
      Running& one = *running[i];
      Outcome& outcome = result.outcomes[one.index];
      if ((sockets[i].revents & POLLOUT) != 0) one.connection.send_more();
      bool open = !one.connection.failed();
      if (open && (sockets[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
        open = one.connection.receive([&](std::string_view bytes) {
          one.reader.push(bytes, [&](std::string_view data) { take_event(data, one, outcome); });
        });
      }
      if (open && !one.reader.complete()) continue;
      finish(one, outcome);
      running[i].reset();
    }
    std::erase(running, nullptr);
  }
  result.seconds = seconds_since(begin);
  return result;
}

std::string get_text(const LocalAddress& address, const std::string& path,
                     const std::string& api_key) {
  Connection connection(address, request_text(address, "GET", path, api_key, ""));
  const std::string where = "http://" + address.host + ":" + std::to_string(address.port) + path;
  if (connection.failed()) throw Error("diffattn: bench serve: nobody answers at " + where);
  connection.send_more();
  EventReader reader;
  const auto take = [&](std::string_view bytes) { reader.push(bytes, [](std::string_view) {}); };
  const auto begin = Clock::now();
  while (!reader.complete() && seconds_since(begin) < 30) {
    pollfd socket = connection.watch();
    poll(&socket, 1, 100);
    if (socket.revents != 0 && !connection.receive(take)) break;
  }
  if (reader.status() != 200) {
    throw Error("diffattn: bench serve: expected status 200 from " + where + ", got " +
                std::to_string(reader.status()) + " " + io::in_quotes(reader.body(), '\'', 200));
  }
  return reader.body();
}

}  // namespace diffattn::app
