// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace diffattn::app {

/// Returns the verbs that were parsed, with a blank before each: " bench attention".
std::string parsed_verbs(const CLI::App& app);

/// Returns the message of a parse error in the form of our own messages. A mistyped verb or option
/// comes first, with the nearest name, because it is often the reason for the other errors.
std::string parse_message(const CLI::App& app, const CLI::ParseError& error);

/// Returns the message for a first argument that is no verb.
std::string unknown_verb_message(const CLI::App& app, const std::string& word);

}  // namespace diffattn::app
