// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace diffattn::app {

/// True for std::bad_alloc and for the errors that torch throws when it cannot allocate memory on
/// the CPU or on a GPU.
bool is_out_of_memory(const std::exception& error);

/// Returns a sentence with the options of a verb that lower its memory.
std::string less_memory(const std::string& verb);

}  // namespace diffattn::app
