// SPDX-License-Identifier: Apache-2.0
//
// Every call that writes a checkpoint or a model folder fails once in each way. A run that resumes
// afterwards must not have lost a checkpoint and must end in the bits of an undisturbed run.
//
// Each run is a child process, because a kill ends it. torch starts no threads before the fork: the
// parent only counts and compares.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/train/run.h"
#include "tests/faults/fault_points.h"
#include "tests/io/test_files.h"
#include "tests/train/counting_rows.h"
#include "train/new_model.h"

namespace diffattn::train::fault_test {
namespace {

namespace fs = std::filesystem;
using io::testing::TempFolder;

constexpr int kSteps = 6, kEnded = 10, kFailed = 11, kWrong = 12;
constexpr size_t kSample = 90;  // cases of `make test`
constexpr const char* kKinds[] = {"", "ENOSPC", "EIO", "short write", "kill"};
constexpr const char* kCalls[] = {"write", "fsync", "rename", "close"};

RunConfig small_run() {
  RunConfig config;
  config.set_all({{"model.hidden_size", "8"},
                  {"model.num_hidden_layers", "1"},
                  {"model.num_attention_heads", "2"},
                  {"model.intermediate_size", "8"},
                  {"model.vocab_size", "13"},
                  {"train.steps", std::to_string(kSteps)},
                  {"train.seq_len", "8"},
                  {"train.learning_rate", "1e-2"},
                  {"train.eval_every", "3"},
                  {"train.eval_batches", "1"},
                  {"train.checkpoint_every", "2"},
                  {"train.keep_checkpoints", "2"},
                  {"train.peak_tflops", "1"}});
  config.resolve();
  return config;
}

/// Trains in `folder` to the end, from its newest checkpoint if it has one. Returns kWrong if that
/// checkpoint is older than step `saved`. `on_saved` is called after each checkpoint.
int train_in(const std::string& folder, int64_t saved,
             const std::function<void(int64_t)>& on_saved) {
  torch::set_num_threads(1);
  const RunConfig config = small_run();
  try {
    train::Run run(folder, config, new_model(config));
    CountingRows train, valid;
    const bool resumed = run.resume(train);
    if (saved > 0 && (!resumed || run.trainer().state.step < saved)) return kWrong;
    if (fs::exists(run.model_folder())) models::load_causal_lm(run.model_folder());
    RunEvents events;
    events.on_checkpoint = [&](const std::string&) {
      if (on_saved) on_saved(run.trainer().state.step);
    };
    return run.go(train, &valid, events) == Outcome::kDone ? kEnded : kWrong;
  } catch (const io::Error& error) {
    return kFailed;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return kWrong;
  }
}

/// The end of a child process.
struct End {
  int code = -1;                 // kEnded, kFailed, kWrong, or -1 after a kill
  int64_t saved = 0;             // step of its last checkpoint
  std::vector<FaultCall> calls;  // that fault_points counted; empty after a kill
};

/// Runs train_in() in a child process, with one fault.
End run_child(const std::string& folder, int64_t saved, long at, FaultKind kind) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const auto tell = [&](int64_t step) {
      if (write(ends[1], &step, sizeof step) != sizeof step) _exit(kWrong);
    };
    fault_points_arm(folder.c_str(), at, kind);
    const int code = train_in(folder, saved, tell);
    for (long i = 0; i < fault_points_seen(); ++i) tell(-1 - fault_points_call(i));
    _exit(code);
  }
  close(ends[1]);
  End end;
  for (int64_t told = 0; read(ends[0], &told, sizeof told) == sizeof told;) {
    if (told >= 0) end.saved = told;
    if (told < 0) end.calls.push_back(static_cast<FaultCall>(-1 - told));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  end.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return end;
}

std::vector<std::string> results(const std::string& folder) {
  const std::string last = folder + "/checkpoints/step-" + std::to_string(kSteps);
  std::vector<std::string> texts;
  for (const std::string& path :
       {last + "/model.safetensors", last + "/rank-00000/optimizer.safetensors",
        last + "/rank-00000/state.json", folder + "/model/model.safetensors"}) {
    texts.push_back(io::read_text(path, 1 << 20));
  }
  return texts;
}

std::vector<std::string> leftovers(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with('.') && name != ".lock") found.push_back(entry.path());
  }
  return found;
}

struct Case {
  long at;
  FaultKind kind;
};

/// Returns every call with every fault that it can have, or a sample of these.
std::vector<Case> cases(const std::vector<FaultCall>& calls) {
  std::vector<Case> all;
  for (size_t at = 0; at < calls.size(); ++at) {
    for (const FaultKind kind : {kFaultNoSpace, kFaultIo, kFaultShortWrite, kFaultKill}) {
      if (kind == kFaultShortWrite && calls[at] != kCallWrite) continue;
      all.push_back({static_cast<long>(at), kind});
    }
  }
  const char* const amount = getenv("DIFFATTN_TEST_FAULTS");
  if (amount != nullptr && std::string(amount) == "all") return all;
  std::vector<Case> some;  // a stride without a common divisor with 4 meets every kind
  for (size_t i = 0; i < all.size(); i += (all.size() / kSample) | 1) some.push_back(all[i]);
  return some;
}

TEST(FaultPoints, NothingIsLostButTheStepsSinceTheLastCheckpoint) {
  if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", /*replace=*/0);  // quick syncs
  const TempFolder undisturbed;
  const std::string whole = undisturbed / "run";
  const End reference = run_child(whole, 0, -1, kFaultNone);
  ASSERT_EQ(reference.code, kEnded);
  ASSERT_GT(reference.calls.size(), 100u);
  const std::vector<FaultCall>& calls = reference.calls;
  const std::vector<std::string> expected = results(whole);
  const std::vector<Case> chosen = cases(calls);
  std::map<std::string, int> count;
  for (const Case& one : chosen) {
    const FaultCall call = calls[static_cast<size_t>(one.at)];
    const std::string name = std::string(kCalls[call]) + " " + kKinds[one.kind];
    SCOPED_TRACE("call " + std::to_string(one.at) + ": " + name);
    ++count[name];
    const TempFolder folder;
    const std::string run = folder / "run";
    const End first = run_child(run, 0, one.at, one.kind);
    if (one.kind == kFaultKill) {
      EXPECT_EQ(first.code, -1);
    } else if (one.kind == kFaultShortWrite) {
      EXPECT_EQ(first.code, kEnded);
    } else {
      EXPECT_TRUE(first.code == kFailed || first.code == kEnded) << first.code;
    }
    const End second = run_child(run, first.saved, -1, kFaultNone);
    ASSERT_EQ(second.code, kEnded) << "after a checkpoint at step " << first.saved;
    EXPECT_TRUE(results(run) == expected);
    EXPECT_EQ(leftovers(run), std::vector<std::string>{});
  }
  std::cout << calls.size() << " calls, " << chosen.size() << " faults:";
  for (const auto& [name, times] : count) std::cout << " " << name << " " << times << ",";
  std::cout << "\n";
}

}  // namespace
}  // namespace diffattn::train::fault_test
