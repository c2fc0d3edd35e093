// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "diffattn/error.h"

namespace diffattn::serve {

/// An answer of status 400 and above, with the error object of the OpenAI API.
class ApiError : public Error {
 public:
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : Error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  /// The field to blame, such as "messages[0].role"; empty for none.
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  /// Returns {"error": {message, type, param, code}}.
  std::string json() const;

 private:
  int status_;
  std::string param_, code_;
};

}  // namespace diffattn::serve
