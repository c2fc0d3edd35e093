// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace diffattn::app {

/// An http:// address of this machine.
struct LocalAddress {
  std::string host;
  uint16_t port = 0;
};
/// Throws train::ConfigError unless the address is http:// and of this machine.
LocalAddress local_address(const std::string& url);

/// Requests to send, and when.
struct Load {
  struct Request {
    double at = 0.0;  // seconds from the begin
    std::string body;
    int64_t prompt_tokens = 0;
  };
  std::vector<Request> requests;
  size_t clients = 0;  // most requests at a time
  std::string api_key;
};

/// How a request went. Times are in seconds from the moment when it was due.
struct Outcome {
  int status = 0;     // 0: no answer
  std::string error;  // of an answer that is none
  double first = 0, all = 0;
  std::vector<double> gaps;  // between events with text
  int64_t tokens = 0;        // generated, as the server counts them
};

struct LoadResult {
  std::vector<Outcome> outcomes;
  double seconds = 0;  // from the first request to the last answer
};

/// Sends requests to /v1/completions, each at its time, whatever has become of the others, and
/// reads the streams. One thread does all of it.
LoadResult run_load(const LocalAddress& address, const Load& load);

/// Returns the answer to a GET. Throws diffattn::Error that names the address.
std::string get_text(const LocalAddress& address, const std::string& path,
                     const std::string& api_key);

}  // namespace diffattn::app
