// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

/// Each verb adds its sub-command and returns what to run when it was chosen: a function that gives
/// the exit code (0 done, 1 failed; `train` also 3 and 4).
namespace diffattn::app {

using Run = std::function<int()>;

Run add_info(CLI::App& app);
Run add_selftest(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_bench_module(CLI::App& bench);  // parts of bench
Run add_bench_step(CLI::App& bench);
Run add_bench_generate(CLI::App& bench);
Run add_train(CLI::App& app);
Run add_eval(CLI::App& app);
Run add_generate(CLI::App& app);
Run add_analyze(CLI::App& app);
Run add_classify(CLI::App& app);
Run add_compare(CLI::App& app);
Run add_convert(CLI::App& app);
Run add_summarize(CLI::App& app);
Run add_tokenize(CLI::App& app);

}  // namespace diffattn::app
