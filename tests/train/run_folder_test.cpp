// SPDX-License-Identifier: Apache-2.0
//
// Run folders: finding checkpoints, refusing wrong ones, and reporting failed writes.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <csignal>
#include <filesystem>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "tests/io/test_files.h"
#include "train/checkpoint_folder.h"
#include "train/checkpoints.h"
#include "train/metrics_log.h"
#include "train/run_lock.h"

namespace diffattn::train::run_folder_test {
namespace {

namespace fs = std::filesystem;
using io::testing::error_of;
using io::testing::holds;
using io::testing::TempFolder;
using Steps = std::vector<int64_t>;

TEST(Checkpoints, NamesAreReadAsTheyAreWritten) {
  EXPECT_EQ(checkpoint_step("step-0"), 0);
  EXPECT_EQ(checkpoint_step("step-120"), 120);
  for (const char* name : {"", "step-", "step--1", "step-05", "step-5x", "step- 5", "stop-5",
                           "step-99999999999999999999", "latest"}) {
    EXPECT_FALSE(checkpoint_step(name)) << name;
  }
}

TEST(Checkpoints, TheNewestIntactOneBeforeAStepIsFound) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path(), /*keep=*/4);
  for (const int64_t step : {5, 10, 15, 20}) {
    checkpoints.save(
        step, 1, [](const std::string& target) { io::write_text(target + "/config.json", "{}"); });
  }
  EXPECT_EQ(checkpoints.steps(), (Steps{5, 10, 15, 20}));
  EXPECT_EQ(checkpoints.intact_before(20), 15);
  io::write_text(checkpoints.folder_of(15) + "/config.json", "[]");
  EXPECT_EQ(checkpoints.intact_before(20), 10);
  fs::remove(checkpoints.folder_of(10) + "/complete");
  EXPECT_EQ(checkpoints.intact_before(20), 5);
  EXPECT_FALSE(checkpoints.intact_before(5));
  EXPECT_TRUE(holds(error_of([&] { checkpoints.choose(10); }), "step-5 step-15 step-20"));
}

TEST(Checkpoints, AMissingNewestWithoutOthersAsksForAnotherFolder) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path(), 2);
  checkpoints.save(
      5, 1, [](const std::string& target) { io::write_text(target + "/config.json", "{}"); });
  fs::remove_all(checkpoints.folder_of(5));
  EXPECT_TRUE(holds(error_of([&] { checkpoints.choose(); }), "start again with another --out"));
  EXPECT_TRUE(holds(error_of([&] { checkpoints.choose(5); }), "complete ones: none"));
}

TEST(Checkpoints, LatestMayLagBehindOrNameAnIncompleteFolder) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path(), 2);
  for (const int64_t step : {5, 10}) {
    checkpoints.save(
        step, 1, [](const std::string& target) { io::write_text(target + "/config.json", "{}"); });
  }
  io::write_text(folder / "checkpoints/latest", "step-3\n");
  EXPECT_EQ(checkpoints.choose().step, 10);
  io::write_text(folder / "checkpoints/latest", "step-10\n");
  fs::remove(checkpoints.folder_of(10) + "/complete");
  EXPECT_EQ(checkpoints.choose().step, 5);
  EXPECT_EQ(checkpoints.choose().unusable, std::vector<std::string>{"step-10"});
}

/// Collects torch's warnings while it lives.
class Warnings : public c10::WarningHandler {
 public:
  std::string text;

 private:
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

TEST(MetricsLog, SaysHowManyLinesItRemovedAndWhenItCannotWrite) {
  const TempFolder folder;
  folder.put("metrics.jsonl", "{\"step\": 1}\n");
  Warnings warnings;
  { const MetricsLog log(folder.path(), 2); }
  EXPECT_EQ(warnings.text, "");
  folder.put("metrics.jsonl", "{\"step\": 1}\ngarbage\n\n");
  MetricsLog log(folder.path(), 2);
  EXPECT_TRUE(holds(warnings.text, "removed 2 lines")) << warnings.text;

  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of([&] { log.write(2, {{"loss", 1.0}}); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(holds(message, "metrics.jsonl: could not be written")) << message;

  fs::remove(folder / "metrics.jsonl");
  fs::create_symlink(folder / "none/file", folder / "metrics.jsonl");
  EXPECT_TRUE(holds(error_of([&] { MetricsLog(folder.path(), 0); }), "could not be opened"));
}

TEST(RunLock, NamesWhatCannotBeUsed) {
  const TempFolder folder;
  folder.put("file", "");
  EXPECT_TRUE(holds(error_of([&] { RunLock lock(folder / "file/run"); }), "could not create"));
  fs::create_directories(folder / "run/.lock");
  EXPECT_TRUE(holds(error_of([&] { RunLock lock(folder / "run"); }), "could not be opened"));
}

TEST(CheckpointFolder, NamesWhatCannotBeWritten) {
  const TempFolder folder;
  EXPECT_TRUE(holds(error_of([&] { make_folder(folder / "none/new"); }), "could not create"));
  EXPECT_TRUE(holds(error_of([&] { sync_folder(folder / "none"); }), "could not be opened"));
  EXPECT_TRUE(holds(error_of([&] { replace_folder(folder / "none", folder / "new"); }),
                    "could not be put in place"));
  fs::create_directory(folder / "old");
  EXPECT_TRUE(holds(error_of([&] { replace_folder(folder / "none", folder / "old"); }),
                    "could not be replaced"));
  EXPECT_TRUE(holds(error_of([] { sync_folder("/proc/self"); }), "could not be synced"));
}

}  // namespace
}  // namespace diffattn::train::run_folder_test
