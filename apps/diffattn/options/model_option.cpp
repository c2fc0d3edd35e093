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

/// Returns the checkpoint that the file `latest` names; if it is not there, the one with the
/// highest step; nothing if there is none.
std::optional<fs::path> newest_checkpoint(const fs::path& run) {
  const fs::path all = run / "checkpoints";
  try {
    std::string name = io::read_text((all / kLatest).string(), kMostNameBytes);
    if (name.ends_with('\n')) name.pop_back();
    if (step_of(name) && is_model(all / name)) return all / name;
  } catch (const io::Error&) {  // a run that was killed may have no such file
  }
  std::optional<fs::path> newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(all, ignored)) {
    const auto step = step_of(entry.path());
    if (!step || !is_model(entry.path())) continue;
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

std::optional<fs::path> found_model(const fs::path& given) {
  if (given == kLatest) return newest_run(kRuns);
  if (given.filename() != kLatest) return model_of_run(given);
  const fs::path parent = given.parent_path();
  return newest_checkpoint(parent.filename() == "checkpoints" ? parent.parent_path() : parent);
}

}  // namespace

std::string model_folder(const std::string& given) {
  if (is_model(given)) return given;
  const auto found = found_model(given);
  return found ? found->string() : given;
}

void take_model_folders(CLI::Option& option) {
  const std::string name = option.get_name();
  option.transform(CLI::Validator(
      [name](std::string& given) {
        const std::string folder = model_folder(given);
        if (folder == given && given == kLatest) {
          return fmt::format("expected a run folder in {}/ for 'latest', got none", kRuns);
        }
        if (fs::path(given).filename() == kLatest && folder != given) {
          print_note("diffattn: {} {} is {}\n", name, given, folder);
        }
        given = folder;
        return std::string();
      },
      ""));
}

CLI::Option* add_model_option(CLI::App& verb, std::string& folder, const std::string& kind) {
  CLI::Option* option = verb.add_option(
      "--model", folder, kind + ": model folder, checkpoint, run folder, RUN/latest or latest");
  take_model_folders(*option);
  return option->required();
}

}  // namespace diffattn::app
