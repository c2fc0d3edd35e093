// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "diffattn/error.h"
#include "serve/http/connections.h"
#include "serve/http/http.h"
#include "serve/http/microhttpd.h"

namespace diffattn::serve {
namespace {

/// Seconds after which libmicrohttpd closes a connection on which nothing moves.
constexpr unsigned kIdleSeconds = 30;

/// A request that arrives, and its reply.
struct Exchange {
  HttpRequest request;
  std::shared_ptr<OpenReply> reply;
  uint64_t declared = 0;  // bytes of the body by the head; 0 if it does not say
  size_t received = 0;    // bytes of the body
  bool keeps_body = true;
};

std::string header(MHD_Connection* connection, const char* name) {
  const char* const value = microhttpd().lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? "" : value;
}

/// Resolves a numeric address or a name.
sockaddr_storage address_of(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    throw Error("diffattn serve: --host: expected an address of this machine, got '" + host +
                "': " + gai_strerror(code));
  }
  sockaddr_storage address = {};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

}  // namespace

struct HttpServer::Parts {
  HttpOptions options;
  Handler handler;
  NeedsBody needs_body;
  Connections connections;
  MHD_Daemon* daemon = nullptr;

  Parts(const HttpOptions& o, Handler h, NeedsBody needs)
      : options(o),
        handler(std::move(h)),
        needs_body(std::move(needs)),
        connections(o.receive_timeout, o.answer_timeout) {}

  /// Takes the head of a request, then its body in pieces, then the call without upload data.
  MHD_Result access(MHD_Connection* connection, const char* url, const char* method,
                    const char* data, size_t* size, void** context) {
    if (*context == nullptr) {
      *context = begin(connection, url, method).release();
      // We answer before the body only if we will not read all of it: many clients miss such an
      // answer, since they see the connection close while they still send.
      if (static_cast<Exchange*>(*context)->declared <= most_read()) return MHD_YES;
    }
    Exchange& exchange = *static_cast<Exchange*>(*context);
    if (*size > 0) {
      take(exchange, std::string_view(data, *size));
      *size = 0;
      return exchange.received <= most_read() ? MHD_YES : MHD_NO;
    }
    if (!exchange.reply) {
      exchange.reply = std::make_shared<OpenReply>(connection);
      connections.begin(connection, exchange.reply);
      if (std::max<uint64_t>(exchange.declared, exchange.received) > options.max_body_bytes) {
        refuse_body(*exchange.reply);
      } else {
        handler(std::move(exchange.request), exchange.reply);
      }
    }
    return exchange.reply->answer_or_suspend();
  }

  /// Bytes of a body that we read, and drop, in order to answer that it is too large.
  size_t most_read() const { return 4 * options.max_body_bytes; }

  void take(Exchange& exchange, std::string_view data) const {
    exchange.received += data.size();
    if (exchange.received > options.max_body_bytes && exchange.keeps_body) {
      exchange.keeps_body = false;
      std::string().swap(exchange.request.body);
    }
    if (exchange.keeps_body) exchange.request.body += data;
  }

  std::unique_ptr<Exchange> begin(MHD_Connection* connection, const char* url,
                                  const char* method) const {
    auto exchange = std::make_unique<Exchange>();
    exchange->request.method = method;
    exchange->request.path = url;
    exchange->request.authorization = header(connection, "Authorization");
    exchange->request.origin = header(connection, "Origin");
    exchange->request.host = header(connection, "Host");
    exchange->declared =
        std::strtoull(header(connection, "Content-Length").c_str(), nullptr, /*base=*/10);
    exchange->keeps_body =
        exchange->declared <= options.max_body_bytes && needs_body(exchange->request);
    return exchange;
  }

  void refuse_body(Reply& reply) const {
    reply.send(413,
               "{\"error\":{\"message\":\"the request has more than " +
                   std::to_string(options.max_body_bytes) +
                   " bytes\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}",
               "application/json", {{"Connection", "close"}});
  }

  // libmicrohttpd calls these:

  static MHD_Result on_access(void* self, MHD_Connection* connection, const char* url,
                              const char* method, const char*, const char* data, size_t* size,
                              void** context) {
    try {
      return static_cast<Parts*>(self)->access(connection, url, method, data, size, context);
    } catch (...) {  // such as no memory: nothing may pass through C code
      return MHD_NO;
    }
  }

  static void on_completed(void* self, MHD_Connection* connection, void** context,
                           MHD_RequestTerminationCode) {
    const std::unique_ptr<Exchange> exchange(static_cast<Exchange*>(*context));
    *context = nullptr;
    try {
      static_cast<Parts*>(self)->connections.finish(connection);
      if (exchange && exchange->reply) exchange->reply->detach();
    } catch (...) {  // no memory to cancel the request: it ends by itself
    }
  }

  static void on_connection(void* self, MHD_Connection* connection, void**,
                            MHD_ConnectionNotificationCode code) {
    Connections& connections = static_cast<Parts*>(self)->connections;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) return connections.closed(connection);
    const auto* const info =
        microhttpd().get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    try {
      connections.opened(connection, info->connect_fd);
    } catch (...) {  // no memory: its first request will close the connection
    }
  }

  void start() {
    sockaddr_storage address = address_of(options.host, options.port);
    const auto number = [](auto value) { return static_cast<intptr_t>(value); };
    const std::array settings{
        MHD_OptionItem{MHD_OPTION_SOCK_ADDR, 0, &address},
        MHD_OptionItem{MHD_OPTION_THREAD_POOL_SIZE, number(options.threads), nullptr},
        MHD_OptionItem{MHD_OPTION_CONNECTION_LIMIT, number(options.max_connections), nullptr},
        MHD_OptionItem{MHD_OPTION_CONNECTION_TIMEOUT, number(kIdleSeconds), nullptr},
        MHD_OptionItem{MHD_OPTION_CONNECTION_MEMORY_LIMIT, number(options.max_header_bytes),
                       nullptr},
        MHD_OptionItem{MHD_OPTION_LISTEN_BACKLOG_SIZE, number(1024), nullptr},
        MHD_OptionItem{MHD_OPTION_STRICT_FOR_CLIENT, 1, nullptr},
        MHD_OptionItem{MHD_OPTION_NOTIFY_COMPLETED, reinterpret_cast<intptr_t>(&on_completed),
                       this},
        MHD_OptionItem{MHD_OPTION_NOTIFY_CONNECTION, reinterpret_cast<intptr_t>(&on_connection),
                       this},
        MHD_OptionItem{MHD_OPTION_END, 0, nullptr}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    if (address.ss_family == AF_INET6) flags |= MHD_USE_IPv6;
    daemon = microhttpd().start_daemon(flags, options.port, nullptr, nullptr, &on_access, this,
                                       MHD_OPTION_ARRAY, settings.data(), MHD_OPTION_END);
    if (daemon == nullptr) {
      throw Error("diffattn serve: cannot listen on " + options.host + " port " +
                  std::to_string(options.port) + ": " + std::strerror(errno));
    }
  }
};

HttpServer::HttpServer(const HttpOptions& options, Handler handler, NeedsBody needs_body)
    : parts_(std::make_unique<Parts>(options, std::move(handler), std::move(needs_body))) {}

void HttpServer::listen() { parts_->start(); }

HttpServer::~HttpServer() {
  if (parts_->daemon == nullptr) return;
  parts_->connections.drop_all();  // libmicrohttpd may not stop while connections are suspended
  microhttpd().stop_daemon(parts_->daemon);
}

uint16_t HttpServer::port() const {
  const auto* const info = microhttpd().get_daemon_info(parts_->daemon, MHD_DAEMON_INFO_BIND_PORT);
  return info->port;
}

size_t HttpServer::connections() const { return parts_->connections.size(); }

size_t HttpServer::answering() const { return parts_->connections.answering(); }

}  // namespace diffattn::serve
