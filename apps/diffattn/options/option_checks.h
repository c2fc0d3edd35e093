// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

/// For CLI11's check(), in the words that run files are refused with. CLI11's own ranges let NaN
/// through and write the largest double out.
namespace diffattn::app {

/// An integer in [low, high].
CLI::Validator integer_in(int64_t low, int64_t high);

/// An integer of at least `low`.
CLI::Validator integer_from(int64_t low);

/// A seed: any 64 bits, without a sign.
CLI::Validator any_seed();

/// A finite number in [low, high].
CLI::Validator number_in(double low, double high);

/// A number in (0, 1].
CLI::Validator share();

/// A finite number of at least 0.
CLI::Validator not_negative();

/// A finite number above 0.
CLI::Validator positive();

/// --device: cpu, cuda or cuda:N, of those that this machine has.
CLI::Option* add_device_option(CLI::App& verb, std::string& device);

}  // namespace diffattn::app
