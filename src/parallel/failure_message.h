// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

namespace diffattn::parallel {

/// True if the text of an error of Gloo, NCCL or c10d tells of a connection that broke or of a
/// process that did not answer.
inline bool is_connection_error(std::string text) {
  // NCCL's error for a lost process is "ncclRemoteError: A call failed possibly due to a network
  // error or a remote process exiting prematurely".
  constexpr std::array<std::string_view, 7> kWords{
      "connection", "broken pipe",    "socket",         "timed out",
      "timeout",    "remote process", "ncclremoteerror"};
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::any_of(
      kWords, [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

/// Returns the message for a failed operation, such as "sum on rank 0 of 2". Only the first line of
/// `text` is for users.
inline std::string failure_message(const std::string& operation, const std::string& text) {
  const char* cause =
      is_connection_error(text) ? ", probably because another process has ended" : "";
  return "parallel: the " + operation + " failed" + cause + ": " + text.substr(0, text.find('\n'));
}

}  // namespace diffattn::parallel
