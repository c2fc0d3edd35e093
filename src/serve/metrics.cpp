// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <algorithm>
#include <cstdio>

namespace diffattn::serve {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

void head(const std::string& name, const char* type, const std::string& help, std::string& to) {
  to += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void write_value(const std::string& name, const char* type, const std::string& help, double value,
                 std::string& to) {
  head(name, type, help, to);
  to += name + " " + number(value) + "\n";
}

}  // namespace

void Metrics::Histogram::add(double seconds) {
  const auto at = std::ranges::lower_bound(kBounds, seconds);
  ++counts[static_cast<size_t>(at - kBounds.begin())];
  sum += seconds;
}

void Metrics::Histogram::write(const std::string& name, const std::string& help,
                               std::string& to) const {
  head(name, "histogram", help, to);
  uint64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    const std::string bound = i < kBounds.size() ? number(kBounds[i]) : "+Inf";
    to += name + "_bucket{le=\"" + bound + "\"} " + std::to_string(total) + "\n";
  }
  to += name + "_sum " + number(sum) + "\n" + name + "_count " + std::to_string(total) + "\n";
}

void Metrics::count_request(const std::string& path, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
}

void Metrics::count_prompt_tokens(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += static_cast<uint64_t>(tokens);
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  ++generation_tokens_;
  first_token_.add(seconds);
}

void Metrics::next_token(double seconds) {
  const std::lock_guard lock(mutex_);
  ++generation_tokens_;
  next_token_.add(seconds);
}

void Metrics::finished(double seconds) {
  const std::lock_guard lock(mutex_);
  duration_.add(seconds);
}

std::string Metrics::text(const BackendLoad& load, size_t connections) const {
  const std::lock_guard lock(mutex_);
  std::string out;
  const auto value = [&](const char* name, const char* type, const char* help, double number_) {
    write_value(std::string("diffattn_") + name, type, help, number_, out);
  };
  value("num_requests_running", "gauge", "Sequences that are computed.",
        static_cast<double>(load.running));
  value("num_requests_waiting", "gauge", "Sequences that wait for a place.",
        static_cast<double>(load.waiting));
  value("kv_cache_usage_perc", "gauge", "Used share of the KV cache, 0 to 1.",
        load.pages == 0 ? 0.0
                        : static_cast<double>(load.used_pages) / static_cast<double>(load.pages));
  value("connections", "gauge", "Open connections.", static_cast<double>(connections));
  value("prompt_tokens_total", "counter", "Tokens of prompts.",
        static_cast<double>(prompt_tokens_));
  value("generation_tokens_total", "counter", "Generated tokens.",
        static_cast<double>(generation_tokens_));
  head("diffattn_requests_total", "counter", "Requests by path and status.", out);
  for (const auto& [key, count] : requests_) {
    out += "diffattn_requests_total{path=\"" + key.first + "\",status=\"" +
           std::to_string(key.second) + "\"} " + std::to_string(count) + "\n";
  }
  first_token_.write("diffattn_time_to_first_token_seconds",
                     "Time from a request to its first token.", out);
  next_token_.write("diffattn_inter_token_latency_seconds", "Time between two tokens.", out);
  duration_.write("diffattn_request_duration_seconds", "Time from a request to its last token.",
                  out);
  return out;
}

}  // namespace diffattn::serve
