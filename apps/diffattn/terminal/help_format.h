// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace diffattn::app {

/// Lays out --help for the width of the terminal. Descriptions start in one column and wrap there.
/// The values that an option takes, and the options that it needs or excludes, follow its
/// description.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* verb) const override;
};

}  // namespace diffattn::app
