// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace diffattn::app {

/// Returns the model folder that `given` stands for:
///   a model folder or a checkpoint (it has a config.json)   itself
///   a run folder                                            its model, else its newest checkpoint
///   RUN/latest, RUN/checkpoints/latest                      the newest checkpoint of RUN
///   latest                                                  the newest run folder in ./runs
/// Returns `given` unchanged if it is none of these; loading it then fails with a message.
std::string model_folder(const std::string& given);

/// Adds a required --model that takes everything that model_folder() does. `kind` describes the
/// model in --help.
CLI::Option* add_model_option(CLI::App& verb, std::string& folder, const std::string& kind);

/// Makes an option take everything that model_folder() does. Prints the folder that "latest"
/// stands for.
void take_model_folders(CLI::Option& option);

}  // namespace diffattn::app
