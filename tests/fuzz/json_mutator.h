// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

// Structure-aware mutation of JSON documents: the result is a valid document again, so mutations
// reach the code behind the parser.

namespace diffattn::fuzz {

using nlohmann::json;
using Random = std::minstd_rand;

/// Returns every value inside a document, the document itself first.
std::vector<json*> values_of(json& document);

/// Returns a random value of the document.
json& pick(json& document, Random& random);

/// Changes one value: another number, a longer or shorter string, a removed, repeated or moved
/// element, or a copy of another value of the document.
void mutate_value(json& document, Random& random);

/// Changes `text`: repeats it, joins it with `other`, or changes a byte.
std::string mutate_text(const std::string& text, const std::string& other, Random& random);

/// Implements LLVMFuzzerCustomMutator: applies `mutate` to the document some times. Text that is
/// not JSON, and one in 16 inputs, gets libFuzzer's mutations of bytes.
size_t mutate_document(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                       void (*mutate)(json& document, Random& random));

}  // namespace diffattn::fuzz
