// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <gtest/gtest.h>

namespace diffattn::serve {
namespace {

TEST(Metrics, AreTextForPrometheus) {
  Metrics metrics;
  metrics.count_request("/health", 200);
  metrics.count_request("/health", 200);
  metrics.count_prompt_tokens(7);
  metrics.first_token(0.004);
  metrics.next_token(0.02);
  metrics.next_token(200.0);
  const std::string text =
      metrics.text({.running = 3, .waiting = 2, .used_pages = 1, .pages = 4}, 9);
  for (const char* line : {
           "diffattn_num_requests_running 3\n",
           "diffattn_num_requests_waiting 2\n",
           "diffattn_kv_cache_usage_perc 0.25\n",
           "diffattn_connections 9\n",
           "diffattn_prompt_tokens_total 7\n",
           "diffattn_generation_tokens_total 3\n",
           "diffattn_requests_total{path=\"/health\",status=\"200\"} 2\n",
           "# TYPE diffattn_time_to_first_token_seconds histogram\n",
           "diffattn_time_to_first_token_seconds_bucket{le=\"0.0025\"} 0\n",
           "diffattn_time_to_first_token_seconds_bucket{le=\"0.005\"} 1\n",
           "diffattn_time_to_first_token_seconds_sum 0.004\n",
           "diffattn_inter_token_latency_seconds_bucket{le=\"100\"} 1\n",
           "diffattn_inter_token_latency_seconds_bucket{le=\"+Inf\"} 2\n",
           "diffattn_inter_token_latency_seconds_count 2\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
  }
}

}  // namespace
}  // namespace diffattn::serve
