// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace diffattn::app {

/// Runs a verb after its options were parsed and returns the exit code: 0 done, 1 failed; `train`
/// and `eval` also return 3 (loss not finite).
using VerbAction = std::function<int()>;

/// Exit code of `train` and `eval` when the loss is not finite.
inline constexpr int kNonFiniteLoss = 3;

inline constexpr char kVersionText[] = "diffattn " DIFFATTN_VERSION;

// Each function adds one verb with its options to `app` and returns the action that runs it.
VerbAction add_info(CLI::App& app);
VerbAction add_selftest(CLI::App& app);
VerbAction add_bench(CLI::App& app);
VerbAction add_train(CLI::App& app);
VerbAction add_eval(CLI::App& app);
VerbAction add_generate(CLI::App& app);
VerbAction add_analyze(CLI::App& app);
VerbAction add_classify(CLI::App& app);
VerbAction add_compare(CLI::App& app);
VerbAction add_convert(CLI::App& app);
VerbAction add_serve(CLI::App& app);
VerbAction add_summarize(CLI::App& app);
VerbAction add_tokenize(CLI::App& app);
VerbAction add_help(CLI::App& app);
VerbAction add_version(CLI::App& app);
VerbAction add_completion(CLI::App& app);

// The verbs below `bench`.
VerbAction add_bench_attention(CLI::App& bench);
VerbAction add_bench_module(CLI::App& bench);
VerbAction add_bench_step(CLI::App& bench);
VerbAction add_bench_generate(CLI::App& bench);
VerbAction add_bench_serve(CLI::App& bench);

}  // namespace diffattn::app
