// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

// Checks for CLI11's check(), with the same messages as those of run files. CLI11's own range
// checks accept NaN and print the largest double in full.

namespace diffattn::app {

/// Accepts an integer in [low, high].
CLI::Validator integer_in(int64_t low, int64_t high);

/// Accepts an integer of at least `low`.
CLI::Validator integer_from(int64_t low);

/// Accepts a seed: an unsigned integer of 64 bits.
CLI::Validator any_seed();

/// Accepts a finite number in [low, high].
CLI::Validator number_in(double low, double high);

/// Accepts a number in (0, 1].
CLI::Validator share();

/// Accepts a finite number of at least 0.
CLI::Validator not_negative();

/// Accepts a finite number above 0.
CLI::Validator positive();

/// Throws a CLI11 error if more than one of the options was given, or none of them although one is
/// `required`. CLI11's own groups report this without the names of the options.
void check_one_of(const CLI::App& verb, const std::vector<std::string>& options, bool required);

}  // namespace diffattn::app
