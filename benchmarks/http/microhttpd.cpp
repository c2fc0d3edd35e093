// SPDX-License-Identifier: Apache-2.0
// An event every 50 ms on each connection with libmicrohttpd: one thread, suspended connections.
#include <microhttpd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

namespace {

constexpr int kEvents = 1000;
const std::string kEvent = "data: {\"choices\": [{\"text\": \" word\"}]}\n\n";

struct Stream {
  MHD_Connection* connection;
  int due = 0, sent = 0;
  bool suspended = false;
};

std::mutex mutex;
std::set<Stream*> streams;

ssize_t read_event(void* self, uint64_t, char* to, size_t) {
  auto* stream = static_cast<Stream*>(self);
  const std::lock_guard lock(mutex);
  if (stream->sent == kEvents) return MHD_CONTENT_READER_END_OF_STREAM;
  if (stream->sent == stream->due) {
    stream->suspended = true;
    MHD_suspend_connection(stream->connection);
    return 0;
  }
  ++stream->sent;
  std::memcpy(to, kEvent.data(), kEvent.size());
  return static_cast<ssize_t>(kEvent.size());
}

void free_stream(void* self) {
  auto* stream = static_cast<Stream*>(self);
  const std::lock_guard lock(mutex);
  streams.erase(stream);
  delete stream;
}

MHD_Result answer(void*, MHD_Connection* connection, const char*, const char*, const char*,
                  const char*, size_t*, void** seen) {
  if (*seen == nullptr) {
    *seen = connection;
    return MHD_YES;
  }
  auto* stream = new Stream{.connection = connection};
  {
    const std::lock_guard lock(mutex);
    streams.insert(stream);
  }
  MHD_Response* response =
      MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_event, stream, free_stream);
  MHD_add_response_header(response, "Content-Type", "text/event-stream");
  const MHD_Result result = MHD_queue_response(connection, MHD_HTTP_OK, response);
  MHD_destroy_response(response);
  return result;
}

}  // namespace

int main() {
  MHD_Daemon* daemon =
      MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr,
                       nullptr, answer, nullptr, MHD_OPTION_CONNECTION_LIMIT, 1100U,
                       MHD_OPTION_CONNECTION_MEMORY_LIMIT, size_t{16384}, MHD_OPTION_END);
  std::printf("%d\n", MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
  std::fflush(stdout);
  for (auto next = std::chrono::steady_clock::now();;) {
    std::this_thread::sleep_until(next += std::chrono::milliseconds(50));
    const std::lock_guard lock(mutex);
    for (Stream* stream : streams) {
      ++stream->due;
      if (std::exchange(stream->suspended, false)) MHD_resume_connection(stream->connection);
    }
  }
}
