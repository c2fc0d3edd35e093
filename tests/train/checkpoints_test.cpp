// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/train/run.h"
#include "tests/io/test_files.h"
#include "tests/train/counting_rows.h"
#include "train/checkpoint_folder.h"
#include "train/checkpoints.h"
#include "train/new_model.h"
#include "train/run_lock.h"

namespace diffattn::train::checkpoints_test {
namespace {

namespace fs = std::filesystem;
using io::testing::TempFolder;

/// Returns the message of the io::Error or ConfigError that `action` throws, or an empty string.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

void flip_bit(const std::string& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 0x10));
}

auto writer(const std::string& text) {
  return [text](const std::string& target) { io::write_text(target + "/state", text); };
}

TEST(Checkpoints, AreCompleteOrAbsent) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path(), /*keep=*/2);
  EXPECT_FALSE(checkpoints.choose().step);
  for (const int64_t step : {5, 10, 15}) checkpoints.save(step, 1, writer(std::to_string(step)));
  EXPECT_EQ(checkpoints.steps(), (std::vector<int64_t>{10, 15}));
  EXPECT_THROW(checkpoints.save(20, 1,
                                [](const std::string& target) {
                                  io::write_text(target + "/state", "half");
                                  throw std::runtime_error("disk full");
                                }),
               std::runtime_error);
  EXPECT_EQ(checkpoints.steps(), (std::vector<int64_t>{10, 15}));
  EXPECT_EQ(checkpoints.choose().step, 15);
  EXPECT_EQ(io::read_text(checkpoints.folder_of(15) + "/state", 100), "15");
  checkpoints.save(15, 1, writer("again"));
  EXPECT_EQ(io::read_text(checkpoints.folder_of(15) + "/state", 100), "again");
  EXPECT_EQ(io::read_text(folder / "checkpoints/latest", 100), "step-15\n");
}

TEST(Checkpoints, RemoveWhatAKilledRunLeft) {
  const TempFolder folder;
  fs::create_directories(folder / "checkpoints/.writing-30");
  io::write_text(folder / "checkpoints/.writing-30/state", "half");
  io::write_text(folder / "checkpoints/.latest.77-0.tmp", "st");
  const Checkpoints checkpoints(folder.path(), 2);
  EXPECT_TRUE(fs::is_empty(folder / "checkpoints"));
  EXPECT_FALSE(checkpoints.choose().step);
}

TEST(Checkpoints, FoldersThatNeverBecameCompleteDoNotBlock) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path(), 2);
  checkpoints.save(5, 1, writer("5"));
  fs::create_directory(folder / "checkpoints/step-999");
  fs::create_directory(folder / "checkpoints/step-07");  // not a name that we write
  fs::copy(checkpoints.folder_of(5), folder / "checkpoints/step-8");
  fs::remove(folder / "checkpoints/step-8/complete");
  const auto choice = checkpoints.choose();
  EXPECT_EQ(choice.step, 5);
  EXPECT_EQ(choice.unusable, (std::vector<std::string>{"step-999", "step-8"}));
  EXPECT_NE(
      error_of([&] { checkpoints.choose(8); }).find("never became complete; complete ones: step-5"),
      std::string::npos);
  EXPECT_NE(error_of([&] { checkpoints.choose(6); }).find("got no such folder"), std::string::npos);
  checkpoints.save(10, 1, writer("10"));
  EXPECT_EQ(checkpoints.steps(), (std::vector<int64_t>{5, 8, 10}));  // step-999 was a later step
}

TEST(Checkpoints, AMissingNewestIsNamedWithTheOneBefore) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path(), 2);
  for (const int64_t step : {5, 10}) checkpoints.save(step, 1, writer("x"));
  fs::remove_all(checkpoints.folder_of(10));
  const std::string message = error_of([&] { checkpoints.choose(); });
  EXPECT_NE(message.find("step-10: the newest checkpoint"), std::string::npos) << message;
  EXPECT_NE(message.find("--from step-5"), std::string::npos) << message;
  EXPECT_EQ(checkpoints.choose(5).step, 5);
  io::write_text(folder / "checkpoints/latest", "\x01garbage");
  EXPECT_EQ(checkpoints.choose().step, 5);
}

TEST(Checkpoints, EveryDamagedFileIsNamed) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path(), 2);
  checkpoints.save(5, 3, [](const std::string& target) {
    io::write_text(target + "/config.json", "{}");
    make_folder(rank_folder(target, 2));
    io::write_text(rank_folder(target, 2) + "/state.json", "12345");
  });
  const std::string whole = checkpoints.folder_of(5);
  EXPECT_EQ(check_checkpoint(whole), 3);
  for (const char* name : {"/config.json", "/rank-00002/state.json", "/manifest.json"}) {
    const std::string copy = folder / "copy";
    fs::copy(whole, copy, fs::copy_options::recursive);
    flip_bit(copy + name, 1);
    EXPECT_EQ(
        error_of([&] { check_checkpoint(copy); }).find(copy + name + ": expected the checksum"), 0u)
        << name;
    io::write_text(copy + name, "shorter");
    EXPECT_EQ(error_of([&] { check_checkpoint(copy); }).find(copy + name + ": expected"), 0u);
    fs::remove(copy + name);
    EXPECT_EQ(error_of([&] { check_checkpoint(copy); }).find(copy + name + ": expected"), 0u);
    fs::remove_all(copy);
  }
}

TEST(RunLock, KeepsASecondRunOut) {
  const TempFolder folder;
  {
    const RunLock lock(folder.path());
    EXPECT_NE(error_of([&] {
                const RunLock second(folder.path());
              }).find("another run writes here (process " + std::to_string(getpid())),
              std::string::npos);
    EXPECT_NO_THROW(lock.check());
  }
  EXPECT_NO_THROW(RunLock(folder.path()));
}

RunConfig small_run(int64_t steps) {
  RunConfig config;
  config.set_all({{"model.hidden_size", "8"},
                  {"model.num_hidden_layers", "1"},
                  {"model.num_attention_heads", "2"},
                  {"model.vocab_size", "13"},
                  {"train.steps", std::to_string(steps)},
                  {"train.seq_len", "8"},
                  {"train.schedule", "constant"},
                  {"train.checkpoint_every", "2"},
                  {"train.peak_tflops", "1"}});
  config.resolve();
  return config;
}

/// Trains to the end of `config` in `folder`, resuming if it holds a run.
Outcome train_in(const std::string& folder, const RunConfig& config,
                 const ResumeOptions& options = {}) {
  train::Run run(folder, config, new_model(config));
  CountingRows train;
  run.resume(train, options);
  return run.go(train, nullptr);
}

TEST(Resume, ADamagedCheckpointIsNamedAndTheOneBeforeGivesTheSameBits) {
  const TempFolder folder;
  EXPECT_EQ(train_in(folder.path(), small_run(6)), Outcome::kDone);
  const TempFolder whole;
  train_in(whole.path(), small_run(8));
  const std::string newest = folder / "checkpoints/step-6";
  for (const char* name : {"/model.safetensors", "/rank-00000/optimizer.safetensors",
                           "/rank-00000/random.safetensors"}) {
    const std::string path = newest + name;
    flip_bit(path, fs::file_size(path) - 3);
    const std::string message = error_of([&] { train_in(folder.path(), small_run(8)); });
    EXPECT_EQ(message.find(path + ": expected the checksum"), 0u) << message;
    EXPECT_NE(message.find("damaged, continue from an intact one with --from step-4"),
              std::string::npos)
        << message;
    flip_bit(path, fs::file_size(path) - 3);
  }
  flip_bit(newest + "/model.safetensors", fs::file_size(newest + "/model.safetensors") - 3);
  EXPECT_EQ(train_in(folder.path(), small_run(8), {.from = 4}), Outcome::kDone);
  EXPECT_TRUE(io::read_text(folder / "model/model.safetensors", 1 << 20) ==
              io::read_text(whole / "model/model.safetensors", 1 << 20));
  EXPECT_EQ(train_in(folder.path(), small_run(8)), Outcome::kDone);
}

TEST(Resume, AnEarlierStartReplacesLaterCheckpoints) {
  const TempFolder folder;
  train_in(folder.path(), small_run(6));
  RunConfig config = small_run(5);
  config.set("train.checkpoint_every", "1");
  {
    train::Run run(folder.path(), config, new_model(config));
    CountingRows train;
    ASSERT_TRUE(run.resume(train, {.from = 4}));
    EXPECT_EQ(run.go(train, nullptr), Outcome::kDone);
    EXPECT_EQ(*run.intact_checkpoint(), folder / "checkpoints/step-5");
  }
  EXPECT_FALSE(fs::exists(folder / "checkpoints/step-6"));
  EXPECT_EQ(io::read_text(folder / "checkpoints/latest", 100), "step-5\n");
}

TEST(Resume, AnotherNumberOfRowsPerUpdateIsAllowedByNameOnly) {
  const TempFolder folder;
  RunConfig config = small_run(2);
  config.set("train.batch_size", "8");
  train_in(folder.path(), config);
  config.set("train.steps", "4");
  config.set("train.batch_size", "2");
  const std::string message = error_of([&] { train_in(folder.path(), config); });
  EXPECT_EQ(message.find("train.batch_size: expected"), 0u) << message;
  EXPECT_NE(message.find("--change-batch-size"), std::string::npos) << message;
  config.set("train.accumulate", "4");  // 8 rows as before
  EXPECT_EQ(train_in(folder.path(), config), Outcome::kDone);
  config.set("train.accumulate", "1");
  config.set("train.steps", "6");
  EXPECT_EQ(train_in(folder.path(), config, {.from = {}, .change_batch_size = true}),
            Outcome::kDone);
}

TEST(Run, ARemovedFolderEndsTheRun) {
  for (const bool replaced : {false, true}) {
    const TempFolder folder;
    const std::string path = folder / "run";
    const RunConfig config = small_run(4);
    train::Run run(path, config, new_model(config));
    CountingRows train;
    RunEvents events;
    events.on_step = [&](const StepReport& report, const TrainingState&) {
      if (report.step != 3) return;
      fs::remove_all(path);
      if (replaced) {
        fs::create_directory(path);
        io::write_text(path + "/.lock", "other");
      }
    };
    EXPECT_NE(error_of([&] { run.go(train, nullptr, events); }).find("was removed or replaced"),
              std::string::npos);
    EXPECT_FALSE(fs::exists(path + "/model"));
  }
}

}  // namespace
}  // namespace diffattn::train::checkpoints_test
