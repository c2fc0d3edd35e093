// SPDX-License-Identifier: Apache-2.0
//
// Every call that writes a checkpoint or a model folder fails once in each way. A run that resumes
// afterwards must not have lost a checkpoint and must end in the bits of an undisturbed run.
//
// Each run is a child process, because a kill ends it. torch starts no threads before the fork: the
// parent only counts and compares.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <map>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/train/run.h"
#include "tests/faults/faulty_child.h"
#include "tests/io/test_files.h"
#include "tests/train/counting_rows.h"
#include "train/new_model.h"

namespace diffattn::train::fault_test {
namespace {

namespace fs = std::filesystem;
using diffattn::testing::End;
using diffattn::testing::Fault;
using diffattn::testing::kEnded;
using diffattn::testing::kFailed;
using diffattn::testing::kWrong;
using diffattn::testing::Tell;
using io::testing::TempFolder;

constexpr int kSteps = 6;
constexpr size_t kSample = 90;  // cases of `make test`

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
/// checkpoint is older than step `saved`. Tells the step after each checkpoint.
int train_in(const std::string& folder, int64_t saved, const Tell& tell) {
  torch::set_num_threads(1);
  const RunConfig config = small_run();
  try {
    train::Run run(folder, config, new_model(config));
    CountingRows train, valid;
    const bool resumed = run.resume(train);
    if (saved > 0 && (!resumed || run.trainer().state.step < saved)) return kWrong;
    if (fs::exists(run.model_folder())) models::load_causal_lm(run.model_folder());
    RunEvents events;
    events.on_checkpoint = [&](const std::string&) { tell(run.trainer().state.step); };
    return run.go(train, &valid, events) == Outcome::kDone ? kEnded : kWrong;
  } catch (const io::Error& error) {
    return kFailed;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return kWrong;
  }
}

/// Runs train_in() in a child process, with one fault. metrics.jsonl and the other files of a run
/// do not count.
End train_with(const Fault& fault, const std::string& folder, int64_t saved) {
  return run_child({folder, "checkpoints model .writing-model"}, fault,
                   [&](const Tell& tell) { return train_in(folder, saved, tell); });
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

TEST(FaultPoints, NothingIsLostButTheStepsSinceTheLastCheckpoint) {
  diffattn::testing::use_quick_folders();
  const TempFolder undisturbed;
  const std::string whole = undisturbed / "run";
  const End reference = train_with({}, whole, 0);
  ASSERT_EQ(reference.code, kEnded);
  ASSERT_GT(reference.calls.size(), 100u);
  const std::vector<FaultCall>& calls = reference.calls;
  const std::vector<std::string> expected = results(whole);
  const std::vector<Fault> chosen = diffattn::testing::faults_of(calls, kSample);
  std::map<std::string, int> count;
  for (const Fault& one : chosen) {
    const FaultCall call = calls[static_cast<size_t>(one.at)];
    const std::string name = diffattn::testing::name_of(call, one.kind);
    SCOPED_TRACE("call " + std::to_string(one.at) + ": " + name);
    ++count[name];
    const TempFolder folder;
    const std::string run = folder / "run";
    const End first = train_with(one, run, 0);
    EXPECT_TRUE(diffattn::testing::is_expected(first.code, call, one.kind)) << first.code;
    const End second = train_with({}, run, first.told);
    ASSERT_EQ(second.code, kEnded) << "after a checkpoint at step " << first.told;
    EXPECT_TRUE(results(run) == expected);
    EXPECT_EQ(leftovers(run), std::vector<std::string>{});
  }
  std::cout << calls.size() << " calls, " << chosen.size() << " faults:";
  for (const auto& [name, times] : count) std::cout << " " << name << " " << times << ",";
  std::cout << "\n";
}

TEST(FaultPoints, AFileSystemThatCannotExchangeNamesGivesTheSameBits) {
  const TempFolder folder;
  ASSERT_EQ(train_with({}, folder / "expected", 0).code, kEnded);
  ASSERT_EQ(train_with({-1, kFaultNoFlags}, folder / "run", 0).code, kEnded);
  EXPECT_TRUE(results(folder / "run") == results(folder / "expected"));
  EXPECT_EQ(leftovers(folder / "run"), std::vector<std::string>{});
  EXPECT_FALSE(fs::exists(folder / "run/model.old"));
}

}  // namespace
}  // namespace diffattn::train::fault_test
