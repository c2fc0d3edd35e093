// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "diffattn/error.h"
#include "serve/http/connections.h"

namespace diffattn::serve {
namespace {

using namespace std::chrono_literals;

/// A connection to a port of this machine.
class Client {
 public:
  explicit Client(uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit{.tv_sec = 60, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(socket_); }

  void send(const std::string& text) const {
    ASSERT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  /// Reads until the text has come or the connection ends.
  std::string read_until(const std::string& text) const {
    std::string got;
    char buffer[4096];
    while (got.find(text) == std::string::npos) {
      const ssize_t count = recv(socket_, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      got.append(buffer, static_cast<size_t>(count));
    }
    return got;
  }

 private:
  int socket_;
};

std::string request(const std::string& path, const std::string& body = "") {
  return (body.empty() ? "GET " : "POST ") + path +
         " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

/// A server that keeps the replies that it does not answer at once.
struct HttpTest : testing::Test {
  std::mutex mutex;
  std::vector<std::shared_ptr<Reply>> kept;
  std::atomic<int> gone = 0;
  HttpOptions options;
  std::unique_ptr<HttpServer> server;

  void start() {
    options.port = 0;
    options.max_body_bytes = 1000;
    server = std::make_unique<HttpServer>(
        options,
        [this](HttpRequest&& request, const std::shared_ptr<Reply>& reply) {
          if (request.path == "/echo" || request.path == "/bodiless") {
            return reply->send(201, request.method + " " + request.body + ".", "text/plain",
                               {{"X-A", "b"}});
          }
          reply->on_gone([this] { ++gone; });
          const std::lock_guard lock(mutex);
          kept.push_back(reply);
        },
        [](const HttpRequest& head) { return head.path != "/bodiless"; });
    EXPECT_EQ(server->connections(), 0u);  // may be asked before the server listens
    server->listen();
  }
  std::shared_ptr<Reply> wait_for_reply(size_t index = 0) {
    for (int i = 0; i < 12000; ++i) {
      {
        const std::lock_guard lock(mutex);
        if (kept.size() > index) return kept[index];
      }
      std::this_thread::sleep_for(5ms);
    }
    return nullptr;
  }
  bool wait_for(const std::function<bool()>& condition) {
    for (int i = 0; i < 6000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
  }
};

TEST_F(HttpTest, AnswersAtOnceAndKeepsTheConnection) {
  start();
  const Client client(server->port());
  for (int i = 0; i < 3; ++i) {
    client.send(request("/echo", "hello"));
    const std::string answer = client.read_until("POST hello");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 201")) << answer;
    EXPECT_NE(answer.find("X-A: b"), std::string::npos);
  }
}

TEST_F(HttpTest, AnswersLater) {
  start();
  const Client client(server->port());
  client.send(request("/later"));
  const auto reply = wait_for_reply();
  ASSERT_TRUE(reply);
  std::this_thread::sleep_for(100ms);
  reply->send(200, "done", "text/plain");
  EXPECT_TRUE(client.read_until("done").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(gone, 0);
}

TEST_F(HttpTest, StreamsWhatIsWritten) {
  start();
  const Client client(server->port());
  client.send(request("/stream"));
  const auto reply = wait_for_reply();
  ASSERT_TRUE(reply);
  reply->begin("text/event-stream");
  for (int i = 0; i < 50; ++i) {
    const std::string piece = "<" + std::to_string(i) + ">";
    reply->write(piece);
    EXPECT_NE(client.read_until(piece).find(piece), std::string::npos);
  }
  reply->write(std::string(100000, 'x') + "<end>");
  reply->end();
  EXPECT_NE(client.read_until("<end>").find("<end>"), std::string::npos);
  client.send(request("/echo", "again"));  // the connection lives on
  EXPECT_NE(client.read_until("POST again").find("POST again"), std::string::npos);
}

TEST_F(HttpTest, NoticesThatAClientHasGone) {
  start();
  for (const bool begun : {false, true}) {
    gone = 0;
    auto client = std::make_unique<Client>(server->port());
    client->send(request("/stream"));
    const auto reply = wait_for_reply(begun ? 1 : 0);
    ASSERT_TRUE(reply);
    if (begun) {
      reply->begin("text/event-stream");
      reply->write("a");
      client->read_until("a");
    }
    client.reset();
    EXPECT_TRUE(wait_for([&] { return gone == 1; }));
    reply->write("nobody reads this");
    reply->end();
  }
  EXPECT_TRUE(wait_for([&] { return server->connections() == 0; }));
}

TEST_F(HttpTest, RefusesLargeRequests) {
  start();
  const Client body(server->port());
  body.send(request("/echo", std::string(1001, 'x')));
  EXPECT_TRUE(body.read_until("}}").starts_with("HTTP/1.1 413"));
  const Client head(server->port());
  // Hardly more than the server reads, so that all is sent when the answer comes.
  const std::string begin = "GET /echo HTTP/1.1\r\nHost: a\r\nX: ";
  head.send(begin + std::string(options.max_header_bytes - begin.size(), 'x'));
  EXPECT_TRUE(head.read_until("\r\n\r\n").starts_with("HTTP/1.1 431"));
}

TEST_F(HttpTest, RefusesABodyThatTheHeadSaysIsTooLarge) {
  start();
  const Client client(server->port());
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\n");
  EXPECT_TRUE(client.read_until("}}").starts_with("HTTP/1.1 413"));
  const Client chunks(server->port());
  chunks.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 3; ++i) chunks.send("190\r\n" + std::string(400, 'x') + "\r\n");
  chunks.send("0\r\n\r\n");
  EXPECT_TRUE(chunks.read_until("}}").starts_with("HTTP/1.1 413"));
}

TEST_F(HttpTest, DropsABodyThatNoAnswerNeeds) {
  start();
  const Client client(server->port());
  for (int i = 0; i < 2; ++i) {  // the connection lives on
    client.send(request("/bodiless", std::string(1000, 'x')));
    EXPECT_TRUE(client.read_until("POST .").ends_with("POST ."));
  }
  client.send(request("/bodiless", std::string(1001, 'x')));
  EXPECT_TRUE(client.read_until("}}").starts_with("HTTP/1.1 413"));
}

TEST_F(HttpTest, ClosesAConnectionThatIsAbandoned) {
  start();
  for (const bool begun : {false, true}) {
    gone = 0;
    const Client client(server->port());
    client.send(request("/later"));
    const auto reply = wait_for_reply(begun ? 1 : 0);
    ASSERT_TRUE(reply);
    if (begun) {
      reply->begin("text/event-stream");
      reply->write("some");
      client.read_until("some");
    }
    reply->abandon();
    EXPECT_EQ(client.read_until("nothing comes"), "");
    EXPECT_TRUE(wait_for([&] { return gone == 1; }));
  }
}

TEST_F(HttpTest, ClosesConnectionsThatAreTooSlow) {
  options.receive_timeout = 1s;
  start();
  const Client client(server->port());
  const auto begin = std::chrono::steady_clock::now();
  client.send("GET /echo HTTP/1.1\r\nHo");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s);  // libmicrohttpd itself takes 30 s
}

TEST_F(HttpTest, ClosesConnectionsThatReadTooSlowly) {
  options.answer_timeout = 1s;
  start();
  const Client client(server->port());
  client.send(request("/stream"));
  const auto reply = wait_for_reply();
  ASSERT_TRUE(reply);
  reply->begin("text/event-stream");
  // More than the buffers of both sockets hold.
  for (int i = 0; i < 64; ++i) reply->write(std::string(size_t{1} << 20, 'x'));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(wait_for([&] { return gone == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s);  // libmicrohttpd itself takes 30 s
  EXPECT_TRUE(wait_for([&] { return server->connections() == 0; }));
}

TEST_F(HttpTest, EndsWithOpenReplies) {
  start();
  const Client waiting(server->port()), streaming(server->port());
  waiting.send(request("/later"));
  ASSERT_TRUE(wait_for_reply(0));
  streaming.send(request("/stream"));
  const auto reply = wait_for_reply(1);
  ASSERT_TRUE(reply);
  reply->begin("text/event-stream");
  reply->write("a");
  streaming.read_until("a");
  server.reset();
  EXPECT_EQ(gone, 2);
  reply->write("b");
  reply->end();
}

TEST_F(HttpTest, AReplyThatBeginsDuringTheEndIsDropped) {
  Connections connections(60s, 60s);
  auto* const connection = reinterpret_cast<MHD_Connection*>(&connections);  // nobody looks into it
  connections.opened(connection, -1);
  connections.drop_all();
  const auto reply = std::make_shared<OpenReply>(connection);
  connections.begin(connection, reply);
  reply->on_gone([this] { ++gone; });
  ASSERT_EQ(gone, 1);
  EXPECT_EQ(reply->answer_or_suspend(), MHD_NO);  // a suspended connection would end the process
}

TEST_F(HttpTest, EndsWhileRequestsArrive) {
  for (int round = 0; round < 20; ++round) {
    start();
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 16; ++i) clients.push_back(std::make_unique<Client>(server->port()));
    for (const auto& client : clients) client->send(request("/later"));
    server.reset();
    kept.clear();
  }
}

TEST_F(HttpTest, ManyStreamsAtOnce) {
  start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send(request("/stream"));
  }
  ASSERT_TRUE(wait_for_reply(199));
  for (const auto& reply : kept) reply->begin("text/event-stream");
  for (int i = 0; i < 20; ++i) {
    for (const auto& reply : kept) reply->write("piece " + std::to_string(i) + ";");
  }
  for (const auto& reply : kept) reply->end();
  for (const auto& client : clients) {
    EXPECT_NE(client->read_until("piece 19;").find("piece 19;"), std::string::npos);
  }
}

TEST_F(HttpTest, HasALimitOfOpenConnections) {
  options.max_connections = 8;
  start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send(request("/later"));
  }
  ASSERT_TRUE(wait_for_reply(7));
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(server->connections(), 8u);
  for (size_t i = 0; i < clients.size(); ++i) {  // as one closes, another opens
    const auto reply = wait_for_reply(i);
    ASSERT_TRUE(reply);
    EXPECT_LE(server->connections(), 8u);
    reply->send(200, "done", "text/plain", {{"Connection", "close"}});
  }
  for (const auto& client : clients) {
    EXPECT_NE(client->read_until("done").find("done"), std::string::npos);
  }
}

TEST_F(HttpTest, NamesAPortThatIsTaken) {
  start();
  HttpOptions taken = options;
  taken.port = server->port();
  try {
    HttpServer second(taken, [](HttpRequest&&, const std::shared_ptr<Reply>&) {});
    second.listen();
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(taken.port)), std::string::npos);
  }
  taken.host = std::string(64, 'x') + ".invalid";  // too long a label to ask a name server for
  EXPECT_THROW(HttpServer(taken, {}).listen(), Error);
}

}  // namespace
}  // namespace diffattn::serve
