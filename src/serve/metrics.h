// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "serve/backend.h"

namespace diffattn::serve {

/// Counts and times of the server, as Prometheus reads them. Thread-safe.
class Metrics {
 public:
  void count_request(const std::string& path, int status);
  void count_prompt_tokens(int64_t tokens);
  /// A new token of a sequence: `seconds` since the request came or since the token before.
  void first_token(double seconds);
  void next_token(double seconds);
  void finished(double seconds);

  /// Returns the text of /metrics.
  std::string text(const BackendLoad& load, size_t connections) const;

 private:
  /// A histogram with bounds that grow from 1 ms to 100 s.
  struct Histogram {
    static constexpr std::array kBounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                        0.5,   1.0,    2.5,   5.0,  10.0,  25.0, 50.0, 100.0};
    std::array<uint64_t, kBounds.size() + 1> counts{};
    double sum = 0.0;

    void add(double seconds);
    void write(const std::string& name, const std::string& help, std::string& to) const;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> requests_;  // by path and status
  uint64_t prompt_tokens_ = 0, generation_tokens_ = 0;
  Histogram first_token_, next_token_, duration_;
};

}  // namespace diffattn::serve
