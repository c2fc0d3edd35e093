// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "diffattn/io/file.h"
#include "tests/io/test_files.h"

namespace {

enum class Fault { kNone, kFullDisk, kDevice, kInterrupt, kShortWrite, kKill };

// The test program defines the system calls that AtomicFile makes, so it can make each of them fail
// without a hook in the library. If the plan is not armed, they call the kernel.
struct FaultPlan {
  bool armed = false;
  int calls = 0;    // calls since the plan was armed
  int target = -1;  // index of the call that fails
  Fault fault = Fault::kNone;
} plan;

// Counts a call and returns the fault to inject into it.
Fault next_fault() {
  if (!plan.armed) return Fault::kNone;
  if (plan.calls++ != plan.target) return Fault::kNone;
  if (plan.fault == Fault::kKill) ::kill(::getpid(), SIGKILL);
  return plan.fault;
}

// Sets errno and returns true if the call must fail.
bool fails(Fault fault) {
  if (fault == Fault::kFullDisk) errno = ENOSPC;
  if (fault == Fault::kDevice) errno = EIO;
  if (fault == Fault::kInterrupt) errno = EINTR;
  return fault == Fault::kFullDisk || fault == Fault::kDevice || fault == Fault::kInterrupt;
}

}  // namespace

extern "C" {

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  const Fault fault = next_fault();
  if (fails(fault)) return -1;
  if (fault == Fault::kShortWrite) size = std::max<size_t>(size / 2, 1);
  return ::syscall(SYS_pwrite64, fd, data, size, offset);
}

int fsync(int fd) {
  if (fails(next_fault())) return -1;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

int close(int fd) {
  const bool failing = fails(next_fault());
  const int error_number = errno;
  const int result = static_cast<int>(::syscall(SYS_close, fd));
  if (!failing) return result;
  errno = error_number;
  return -1;
}

int renameat(int from_fd, const char* from, int to_fd, const char* to) noexcept {
  if (fails(next_fault())) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, from_fd, from, to_fd, to, 0));
}

}  // extern "C"

namespace diffattn::io {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::holds;
using testing::slurp;
using testing::TempFolder;

const std::string kNew = "first second third";

void save(const std::string& path) {
  AtomicFile file(path);
  file.append("first ");
  file.write_at(13, bytes_of("third"));
  file.append("second ");
  file.commit();
}

TEST(AtomicFile, ReplacesAtCommit) {
  const TempFolder folder;
  const std::string path = folder.put("f", "old");
  {
    AtomicFile file(path);
    file.append("new");
    EXPECT_EQ(slurp(path), "old");
    file.commit();
    EXPECT_EQ(slurp(path), "new");
    EXPECT_THROW(file.append("more"), Error);
    EXPECT_THROW(file.commit(), Error);
  }
  EXPECT_EQ(slurp(path), "new");
  EXPECT_EQ(folder.entries(), 1U);
  write_text(folder / "g", "");
  EXPECT_EQ(slurp(folder / "g"), "");
}

TEST(AtomicFile, DestroyedBeforeCommitLeavesNoTrace) {
  const TempFolder folder;
  const std::string path = folder.put("f", "old");
  {
    AtomicFile over(path);
    over.append("new");
    AtomicFile fresh(folder / "g");
    fresh.append("new");
    EXPECT_EQ(folder.entries(), 3U);
  }
  EXPECT_EQ(slurp(path), "old");
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(AtomicFile, RefusesBadTargets) {
  const TempFolder folder;
  EXPECT_TRUE(holds(error_of([&] { AtomicFile f(folder / "none/f"); }), "expected a directory"));
  EXPECT_TRUE(holds(error_of([&] { AtomicFile f(folder.path()); }), "got a directory or device"));
  EXPECT_TRUE(holds(error_of([&] { AtomicFile f("/dev/full"); }), "got a directory or device"));
  EXPECT_TRUE(holds(error_of([&] { AtomicFile f(folder / ""); }), "expected the path of a file"));
  EXPECT_TRUE(holds(error_of([&] { AtomicFile f(folder / ".."); }), "expected the path"));
  EXPECT_TRUE(holds(error_of([&] { AtomicFile f(folder / std::string("a\0b", 3)); }), "expected"));
  // /proc allows no new files, not even for root, who may ignore permission bits.
  EXPECT_TRUE(holds(error_of([&] { AtomicFile f("/proc/diffattn"); }), "cannot create"));
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(holds(error_of([&] { AtomicFile f(folder / "fifo"); }), "expected a regular file"));
  EXPECT_TRUE(holds(error_of([&] { AtomicFile(folder / std::string(300, 'n')).commit(); }),
                    "File name too long"));
  EXPECT_NO_THROW(save(folder / std::string(255, 'n')));
  EXPECT_EQ(folder.entries(), 2U);
}

TEST(AtomicFile, ReplacesALinkAndSparesItsTarget) {
  const TempFolder folder;
  const std::string target = folder.put("target", "old");
  ASSERT_EQ(::symlink("target", (folder / "link").c_str()), 0);
  write_text(folder / "link", "new");
  EXPECT_EQ(slurp(target), "old");
  EXPECT_EQ(slurp(folder / "link"), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "link"));
}

TEST(AtomicFile, ReadersKeepTheFileTheyOpened) {
  const TempFolder folder;
  const std::string path = folder.put("f", "old content");
  const File reader = File::open(path);
  save(path);
  EXPECT_EQ(read_text(reader, 100), "old content");
  EXPECT_EQ(slurp(path), kNew);
}

class AtomicFileFaults : public ::testing::Test {
 protected:
  static void arm(int target, Fault fault) { plan = {true, 0, target, fault}; }
  static int disarm() {
    plan.armed = false;
    return plan.calls;
  }
  static int calls_of_one_save(const std::string& path) {
    arm(-1, Fault::kNone);
    save(path);
    return disarm();
  }
};

// Injects every fault into every system call of a save. The file must have the old or the new
// content, never a mixture, and the folder must have no other file.
TEST_F(AtomicFileFaults, EveryCallMayFail) {
  const TempFolder folder;
  const std::string path = folder / "f";
  const int calls = calls_of_one_save(path);
  ASSERT_GE(calls, 8);  // 3 writes, 2 syncs, 2 closes, 1 rename
  int refused = 0;
  for (const Fault fault :
       {Fault::kFullDisk, Fault::kDevice, Fault::kInterrupt, Fault::kShortWrite}) {
    for (int target = 0; target < calls; ++target) {
      folder.put("f", "old");
      std::string what;
      arm(target, fault);
      try {
        save(path);
      } catch (const Error& error) {
        what = error.what();
      }
      disarm();
      SCOPED_TRACE("call " + std::to_string(target) + ": " + what);
      const bool in_place = what.empty() || holds(what, "the file is in place");
      EXPECT_EQ(slurp(path), in_place ? kNew : "old");
      EXPECT_EQ(folder.entries(), 1U);
      if (!what.empty()) {
        EXPECT_TRUE(holds(what, path + ": ")) << what;
      }
      if (fault == Fault::kShortWrite) {
        EXPECT_EQ(what, "");
      }
      refused += what.empty() ? 0 : 1;
    }
  }
  EXPECT_GE(refused, 13);  // two errors at each of seven calls, except one close
}

TEST_F(AtomicFileFaults, EveryCallMayBeTheLast) {
  const TempFolder folder;
  const std::string path = folder / "f";
  const int calls = calls_of_one_save(path);
  for (int target = 0; target < calls; ++target) {
    folder.put("f", "old");
    const pid_t child = ::fork();
    if (child == 0) {
      arm(target, Fault::kKill);
      save(path);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    const std::string content = slurp(path);
    EXPECT_TRUE(content == "old" || content == kNew) << "call " << target << ": " << content;
    save(path);  // works although a killed process has left its temporary file
    EXPECT_EQ(slurp(path), kNew);
  }
}

}  // namespace
}  // namespace diffattn::io
