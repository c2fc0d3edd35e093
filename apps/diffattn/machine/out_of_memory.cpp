// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/machine/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>

namespace diffattn::app {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // torch's CPU allocator throws a plain c10::Error.
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr &&
         torch_error->msg().find("can't allocate memory") != std::string::npos;
}

}  // namespace diffattn::app
