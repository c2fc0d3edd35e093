// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace diffattn::app {

/// Returns the folder that the name of a model stands for:
///   a model folder or a checkpoint (it has a config.json)   itself
///   a run folder                                            its model, else its newest checkpoint
///   RUN/latest, RUN/checkpoints/latest                      the newest complete checkpoint of RUN
///   latest                                                  the newest run folder in ./runs
/// Any other name stays as it is; loading it then fails with a message.
std::string model_folder(const std::string& given);

/// Makes an option take names of models, and replaces them by their folders. Prints the folder that
/// "latest" stands for.
void take_model_folders(CLI::Option& option);

/// Adds a required --model that takes such names. `kind` describes the model in --help.
CLI::Option* add_model_option(CLI::App& verb, std::string& folder, const std::string& kind);

}  // namespace diffattn::app
