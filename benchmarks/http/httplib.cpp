// SPDX-License-Identifier: Apache-2.0
// An event every 50 ms on each connection with cpp-httplib: a thread for each.
#include <httplib.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

namespace {

constexpr int kEvents = 1000;
const std::string kEvent = "data: {\"choices\": [{\"text\": \" word\"}]}\n\n";

}  // namespace

int main() {
  httplib::Server server;
  server.new_task_queue = [] { return new httplib::ThreadPool(1100); };
  server.Get("/", [](const httplib::Request&, httplib::Response& response) {
    auto sent = std::make_shared<int>(0);
    response.set_chunked_content_provider(
        "text/event-stream", [sent](size_t, httplib::DataSink& sink) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          sink.write(kEvent.data(), kEvent.size());
          if (++*sent == kEvents) sink.done();
          return true;
        });
  });
  std::printf("%d\n", server.bind_to_any_port("127.0.0.1"));
  std::fflush(stdout);
  server.listen_after_bind();
}
