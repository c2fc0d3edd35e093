// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/file.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <limits>

#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::holds;
using testing::slurp;
using testing::TempFolder;

TEST(File, ReadsAnyRange) {
  const TempFolder folder;
  const File file = File::open(folder.put("f", "0123456789"));
  EXPECT_EQ(file.size(), 10U);
  std::vector<std::byte> out(4);
  file.read(6, out);
  EXPECT_EQ(std::memcmp(out.data(), "6789", 4), 0);
  file.read(10, {});
  EXPECT_TRUE(holds(error_of([&] { file.read(7, out); }), "byte 7: expected 4 bytes, got a file"));
  EXPECT_TRUE(
      holds(error_of([&] { file.read(std::numeric_limits<uint64_t>::max() - 1, out); }), "got a"));
}

TEST(File, ShrinkingIsAnErrorAndNoSignal) {
  const TempFolder folder;
  const std::string path = folder.put("f", std::string(10'000, 'x'));
  const File file = File::open(path);
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  std::vector<std::byte> out(10'000);
  EXPECT_TRUE(holds(error_of([&] { file.read(0, out); }), "byte 100: expected 9900 more bytes"));
}

TEST(File, OpensRegularFilesOnly) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder / "socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(listener);
  folder.put("file", "x");
  ASSERT_EQ(::symlink("file", (folder / "link").c_str()), 0);

  EXPECT_TRUE(holds(error_of([&] { File::open(folder.path()); }), "got a directory"));
  EXPECT_TRUE(holds(error_of([&] { File::open(folder / "fifo"); }), "got a FIFO"));
  EXPECT_TRUE(holds(error_of([&] { File::open(folder / "socket"); }), "expected a readable file"));
  EXPECT_TRUE(holds(error_of([&] { File::open("/dev/zero"); }), "got a device"));
  EXPECT_TRUE(holds(error_of([&] { File::open(folder / "none"); }), "No such file"));
  EXPECT_TRUE(holds(error_of([&] { File::open(std::string("a\0b", 3)); }), "NUL byte"));
  EXPECT_EQ(File::open(folder / "link").size(), 1U);
  EXPECT_TRUE(holds(error_of([&] { File::open(folder / "link", Symlinks::kRefuse); }),
                    "got a symbolic link"));
  const Directory directory = Directory::open(folder.path());
  EXPECT_EQ(File::open_in(directory, "file", Symlinks::kRefuse).size(), 1U);
  for (const std::string name : {"", ".", "..", "a/b", "/file", "../file"}) {
    EXPECT_TRUE(holds(error_of([&] { File::open_in(directory, name, Symlinks::kFollow); }),
                      "expected a bare file name"))
        << name;
  }
  EXPECT_TRUE(holds(error_of([&] { Directory::open(folder / "file"); }), "expected a directory"));
}

TEST(File, MovesWithoutClosingTwice) {
  const TempFolder folder;
  File a = File::open(folder.put("a", "a"));
  File b = File::open(folder.put("b", "bb"));
  b = std::move(a);
  EXPECT_EQ(b.size(), 1U);
  const File c = std::move(b);
  EXPECT_EQ(read_text(c, 10), "a");
  Directory first = Directory::open(folder.path());
  Directory second = std::move(first);
  second = Directory::open(folder.path());
  EXPECT_TRUE(second.contains("a"));
}

TEST(File, ReadTextHonoursItsLimit) {
  const TempFolder folder;
  const std::string path = folder.put("t", "abc");
  EXPECT_EQ(read_text(path, 3), "abc");
  EXPECT_TRUE(holds(error_of([&] { read_text(path, 2); }), "expected at most 2 bytes, got 3"));
  EXPECT_EQ(read_text(folder.put("empty", ""), 0), "");
}

TEST(File, NoDescriptorLeaks) {
  const TempFolder folder;
  folder.put("f", "x");
  const auto open_count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_count();
  for (int i = 0; i < 100; ++i) {
    error_of([&] { File::open(folder.path()); });
    error_of([&] { AtomicFile file(folder.path()); });
    read_text(folder / "f", 1);
    AtomicFile file(folder / "g");
    file.append("x");
    if (i % 2 == 0) file.commit();
  }
  EXPECT_EQ(open_count(), before);
}

// A limit on the file size acts like a full disk: the kernel first writes fewer bytes than
// requested, then none.
TEST(AtomicFile, FullDiskLeavesTheOldFile) {
  const TempFolder folder;
  const std::string path = folder.put("f", "old");
  rlimit old_limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old_limit;
  small.rlim_cur = 64 << 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string what = error_of([&] {
    AtomicFile file(path);
    file.append(std::string(100 << 10, 'x'));
    file.commit();
  });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(holds(what, path + ": write failed at byte 65536: File too large")) << what;
  EXPECT_EQ(slurp(path), "old");
  EXPECT_EQ(folder.entries(), 1U);
}

}  // namespace
}  // namespace diffattn::io
