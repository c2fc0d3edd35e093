// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tests/fuzz/fuzz.h"

// Targets that read a model folder take a JSON document that describes its files.

namespace diffattn::fuzz {

/// Returns the text of a file: a string as it is, any other value as JSON.
std::string written(const nlohmann::json& value);

/// Writes safetensors files. `files` maps names to headers; each file gets as many zeros as its
/// header declares, up to 64 KiB. A string instead of a header is the content of the file.
void put_weights(const nlohmann::json& files, MemoryFolder& folder);

}  // namespace diffattn::fuzz
