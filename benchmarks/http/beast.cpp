// SPDX-License-Identifier: Apache-2.0
// An event every 50 ms on each connection with Boost.Beast and Asio: one thread, a timer for each.
#include <utility>  // Boost 1.74 lacks it in C++20

#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <cstdio>
#include <memory>
#include <string>

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr int kEvents = 1000;
const std::string kEvent = "data: {\"choices\": [{\"text\": \" word\"}]}\n\n";

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(asio::ip::tcp::socket socket)
      : stream_(std::move(socket)), timer_(stream_.get_executor()), serializer_(response_) {}

  void run() {
    http::async_read(stream_, buffer_, request_,
                     [self = shared_from_this()](error_code error, size_t) {
                       if (!error) self->begin();
                     });
  }

 private:
  void begin() {
    response_.result(http::status::ok);
    response_.set(http::field::content_type, "text/event-stream");
    response_.chunked(true);
    http::async_write_header(stream_, serializer_,
                             [self = shared_from_this()](error_code error, size_t) {
                               if (!error) self->wait();
                             });
  }
  void wait() {
    timer_.expires_after(std::chrono::milliseconds(50));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) self->write();
    });
  }
  void write() {
    asio::async_write(stream_, http::make_chunk(asio::buffer(kEvent)),
                      [self = shared_from_this()](error_code error, size_t) {
                        if (error) return;
                        if (++self->sent_ < kEvents) return self->wait();
                        self->end();
                      });
  }
  void end() {
    asio::async_write(stream_, http::make_chunk_last(),
                      [self = shared_from_this()](error_code, size_t) {});
  }

  boost::beast::tcp_stream stream_;
  asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  http::response<http::empty_body> response_;
  http::response_serializer<http::empty_body> serializer_;
  int sent_ = 0;
};

void accept(asio::ip::tcp::acceptor& acceptor) {
  acceptor.async_accept([&](error_code error, asio::ip::tcp::socket socket) {
    if (!error) std::make_shared<Stream>(std::move(socket))->run();
    accept(acceptor);
  });
}

}  // namespace

int main() {
  asio::io_context context(1);
  asio::ip::tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
  std::printf("%d\n", acceptor.local_endpoint().port());
  std::fflush(stdout);
  accept(acceptor);
  context.run();
}
