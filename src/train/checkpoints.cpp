// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "train/checkpoint_folder.h"

namespace diffattn::train {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "step-";

bool is_complete(const std::string& folder) {
  return checkpoint_state(folder) != CheckpointState::kIncomplete;
}

}  // namespace

std::string unfinished_checkpoint(const std::string& run, int64_t step) {
  return run + "/checkpoints/" + kUnfinished + std::to_string(step);
}

std::string checkpoint_name(int64_t step) { return kPrefix + std::to_string(step); }

std::optional<int64_t> checkpoint_step(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* begin = name.data() + strlen(kPrefix);
  const char* end = name.data() + name.size();
  int64_t step = -1;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || checkpoint_name(step) != name || step < 0) {
    return std::nullopt;
  }
  return step;
}

Checkpoints::Checkpoints(const std::string& run, int64_t keep)
    : run_(run), root_(run + "/checkpoints"), keep_(std::max<int64_t>(2, keep)) {
  make_folder(root_);
  remove_unfinished(root_);
}

std::string Checkpoints::folder_of(int64_t step) const {
  return root_ + "/" + checkpoint_name(step);
}

void Checkpoints::save(int64_t step, int64_t ranks,
                       const std::function<void(const std::string&)>& write,
                       const std::vector<io::Manifest::Entry>& known) {
  const std::string temporary = unfinished_checkpoint(run_, step);
  fs::remove_all(temporary);
  make_folder(temporary);
  try {
    write(temporary);
    finish_checkpoint(temporary, ranks, known);
    remove_later_than(step);
    replace_folder(temporary, folder_of(step));
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  name_latest(step);
  remove_old();
}

Checkpoints::Choice Checkpoints::choose() const {
  const std::vector<int64_t> all = steps();
  Choice choice;
  for (auto step = all.rbegin(); step != all.rend() && !choice.step; ++step) {
    if (is_complete(folder_of(*step))) {
      choice.step = *step;
    } else {
      choice.unusable.push_back(checkpoint_name(*step));
    }
  }
  // A kill may come before the update of `latest`, so a newer folder than `latest` names is right.
  // An older one means that somebody removed the newest.
  const auto named = named_latest();
  if (named && *named > choice.step.value_or(-1) && !fs::exists(folder_of(*named))) {
    const std::string offer =
        choice.step ? "; continue from the one before with --from " + checkpoint_name(*choice.step)
                    : "; no other is complete, so start again with another --out";
    throw io::Error(folder_of(*named),
                    "the newest checkpoint, which checkpoints/latest names, is missing" + offer);
  }
  return choice;
}

Checkpoints::Choice Checkpoints::choose(int64_t step) const {
  if (is_complete(folder_of(step))) return {step, {}};
  std::string has;
  for (const int64_t other : complete_steps()) has += " " + checkpoint_name(other);
  const bool there = fs::exists(folder_of(step));
  throw io::Error(folder_of(step),
                  std::string(there ? "this checkpoint never became complete"
                                    : "expected a checkpoint, got no such folder") +
                      "; complete ones:" + (has.empty() ? " none" : has));
}

bool Checkpoints::any() const { return !complete_steps().empty(); }

std::optional<int64_t> Checkpoints::intact_before(int64_t step) const {
  const std::vector<int64_t> all = complete_steps();
  for (auto other = all.rbegin(); other != all.rend(); ++other) {
    const bool has_checksums = checkpoint_state(folder_of(*other)) == CheckpointState::kComplete;
    if (*other >= step || !has_checksums) continue;
    try {
      check_checkpoint(folder_of(*other));
      return *other;
    } catch (const io::Error&) {
      continue;
    }
  }
  return std::nullopt;
}

std::vector<int64_t> Checkpoints::steps() const {
  std::vector<int64_t> found;
  for (const auto& entry : fs::directory_iterator(root_)) {
    if (const auto step = checkpoint_step(entry.path().filename())) found.push_back(*step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<int64_t> Checkpoints::complete_steps() const {
  std::vector<int64_t> found = steps();
  std::erase_if(found, [&](int64_t step) { return !is_complete(folder_of(step)); });
  return found;
}

std::optional<int64_t> Checkpoints::named_latest() const {
  try {
    std::string name = io::read_text(root_ + "/latest", 64);
    if (name.ends_with('\n')) name.pop_back();
    return checkpoint_step(name);
  } catch (const io::Error&) {
    return std::nullopt;  // no checkpoint yet, or an unreadable file; the folders tell the steps
  }
}

void Checkpoints::name_latest(int64_t step) {
  io::write_text(root_ + "/latest", checkpoint_name(step) + "\n");
}

/// Gives a folder a temporary name, so that a kill during its removal leaves no damaged checkpoint.
std::string Checkpoints::set_aside(int64_t step, std::error_code& failed) {
  std::string aside = root_ + "/" + kUnfinished + "removed-" + std::to_string(step);
  fs::rename(folder_of(step), aside, failed);
  return aside;
}

void Checkpoints::remove_later_than(int64_t step) {
  const std::vector<int64_t> all = steps();
  const auto later = std::ranges::upper_bound(all, step);
  if (later == all.end()) return;
  // After a kill from here on, the run resumes from the checkpoint that it came from.
  const std::vector<int64_t> complete = complete_steps();
  const auto before = std::ranges::upper_bound(complete, step);
  if (before != complete.begin()) name_latest(*std::prev(before));
  std::vector<std::string> aside;
  for (auto stale = later; stale != all.end(); ++stale) {
    std::error_code failed;
    aside.push_back(set_aside(*stale, failed));
    if (failed) throw io::Error(folder_of(*stale), "could not be removed: " + failed.message());
  }
  std::error_code ignored;  // the next start removes the rest
  for (const std::string& folder : aside) fs::remove_all(folder, ignored);
}

void Checkpoints::remove_old() {
  const std::vector<int64_t> complete = complete_steps();
  if (std::ssize(complete) <= keep_) return;
  const int64_t oldest_kept = complete[complete.size() - static_cast<size_t>(keep_)];
  for (const int64_t step : steps()) {
    if (step >= oldest_kept) return;
    std::error_code ignored;  // one old checkpoint too many does no harm
    fs::remove_all(set_aside(step, ignored), ignored);
  }
}

}  // namespace diffattn::train
