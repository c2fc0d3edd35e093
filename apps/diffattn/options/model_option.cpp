// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/model_option.h"

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "apps/diffattn/terminal/print.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"

namespace diffattn::app {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "latest";
constexpr char kRuns[] = "runs";  // where the documents put run folders
constexpr uint64_t kMostNameBytes = 256;

bool is_model(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "config.json", ignored);
}

/// Returns N of a folder named "step-N", or nothing.
std::optional<int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string(), prefix = "step-";
  int64_t step = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, step);
  return error == std::errc{} && stop == end ? std::optional(step) : std::nullopt;
}

/// True if a checkpoint can be used: it has its marker, or state.json, which version 0.1.0 wrote
/// last. Copies that were interrupted have neither.
bool is_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  const bool complete =
      fs::exists(folder / "complete", ignored) || fs::exists(folder / "state.json", ignored);
  return complete && is_model(folder);
}

/// Returns the checkpoint that the file `latest` names; if it is not there, the one with the
/// highest step; nothing if there is none.
std::optional<fs::path> newest_checkpoint(const fs::path& run) {
  const fs::path all = run / "checkpoints";
  try {
    std::string name = io::read_text((all / kLatest).string(), kMostNameBytes);
    if (name.ends_with('\n')) name.pop_back();
    if (step_of(name) && is_checkpoint(all / name)) return all / name;
  } catch (const io::Error&) {  // a run that was killed may have no such file
  }
  std::optional<fs::path> newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(all, ignored)) {
    const auto step = step_of(entry.path());
    if (!step || !is_checkpoint(entry.path())) continue;
    if (!newest || *step > *step_of(*newest)) newest = entry.path();
  }
  return newest;
}

/// Returns the model of a run folder, else its newest checkpoint, or nothing.
std::optional<fs::path> model_of_run(const fs::path& run) {
  if (is_model(run / "model")) return run / "model";
  return newest_checkpoint(run);
}

/// Returns the model of the run in `runs` that was written last, or nothing.
std::optional<fs::path> newest_run(const fs::path& runs) {
  std::optional<fs::path> newest;
  fs::file_time_type newest_time;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(runs, ignored)) {
    const auto model = model_of_run(entry.path());
    if (!model) continue;
    const auto time = fs::last_write_time(*model / "config.json", ignored);
    if (newest && time <= newest_time) continue;
    newest = model;
    newest_time = time;
  }
  return newest;
}

/// Returns RUN of RUN/latest and of RUN/checkpoints/latest.
fs::path run_of_latest(const fs::path& given) {
  const fs::path parent = given.parent_path();
  return parent.filename() == "checkpoints" ? parent.parent_path() : parent;
}

std::optional<fs::path> found_model(const fs::path& given) {
  if (given == kLatest) return newest_run(kRuns);
  if (given.filename() == kLatest) return newest_checkpoint(run_of_latest(given));
  return model_of_run(given);
}

/// Replaces `given` by the folder that it stands for. Returns what is wrong with it, or nothing. A
/// folder without a model is left for the loader, which names the file that is missing.
std::string replace_by_folder(const std::string& option, std::string& given) {
  if (is_model(given)) return {};
  const auto found = found_model(given);
  const bool latest = fs::path(given).filename() == kLatest;
  if (found) {
    if (latest) print_note("diffattn: {} {} is {}\n", option, given, found->string());
    given = found->string();
  } else if (given == kLatest) {
    return fmt::format("expected a run folder in {}/ for 'latest', got none", kRuns);
  } else if (latest) {
    return fmt::format("expected a complete checkpoint in {} for 'latest', got none",
                       (run_of_latest(given) / "checkpoints").string());
  }
  return {};
}

}  // namespace

std::string model_folder(const std::string& given) {
  const auto found = is_model(given) ? std::nullopt : found_model(given);
  return found ? found->string() : given;
}

void take_model_folders(CLI::Option& option) {
  const std::string name = option.get_name();
  option.transform(
      CLI::Validator([name](std::string& given) { return replace_by_folder(name, given); }, ""));
}

CLI::Option* add_model_option(CLI::App& verb, std::string& folder, const std::string& kind) {
  CLI::Option* option = verb.add_option(
      "--model", folder, kind + ": model folder, checkpoint, run folder, RUN/latest or latest");
  take_model_folders(*option);
  return option->required();
}

}  // namespace diffattn::app
