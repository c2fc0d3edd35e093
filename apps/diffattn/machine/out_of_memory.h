// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

namespace diffattn::app {

/// True for std::bad_alloc and for the errors that torch throws when it cannot allocate memory on
/// the CPU or on a GPU.
bool is_out_of_memory(const std::exception& error);

}  // namespace diffattn::app
