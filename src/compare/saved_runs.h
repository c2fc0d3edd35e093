// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare/compare.h"

namespace diffattn::compare {

/// The version of training and measures. Raise it with every change after which the same settings
/// give other numbers, so that compare() does not mix old numbers with new ones.
inline constexpr int64_t kRunVersion = 1;

/// The settings that a saved run must match, so that compare() need not train it again.
struct RunKey {
  std::string config;    // the resolved run file
  std::string source;    // digest of the folder in model.from, whose weights may change
  std::string data;      // where training and validation begin, with the identity of their texts
  std::string test;      // fingerprint of CompareOptions::test
  std::string software;  // versions of diffattn and torch
  bool measured = true;
  int64_t samples = 0;
};

/// Returns a file name for a model of a comparison. Different names give different file names:
/// names with other characters than letters, digits, '_', '.' and '-' get a digest.
std::string file_name_of(const std::string& model);

/// Converts results to one text, for another process of the same program, and back.
std::string runs_to_text(const std::vector<const RunResult*>& runs);
std::vector<RunResult> runs_from_text(const std::string& text);

/// Writes the result of a run to a JSON file, so that a resumed comparison need not train it again.
void save_run(const std::string& path, const RunKey& key, const RunResult& result);

/// Returns the result in the file if the file exists and has this key. Throws io::Error for a file
/// that holds no result.
std::optional<RunResult> load_run(const std::string& path, const RunKey& key);

}  // namespace diffattn::compare
