// SPDX-License-Identifier: Apache-2.0
#include "io/cgroup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using Files = std::vector<std::string>;

TEST(Cgroup, Version2NamesTheGroupAndThoseAroundIt) {
  const char* mounts =
      "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
      "31 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
  EXPECT_EQ(memory_limit_files("0::/user.slice/run-1.scope\n", mounts),
            (Files{"/sys/fs/cgroup/user.slice/run-1.scope/memory.max",
                   "/sys/fs/cgroup/user.slice/memory.max", "/sys/fs/cgroup/memory.max"}));
  // In a container with its own cgroup namespace.
  EXPECT_EQ(memory_limit_files("0::/\n", mounts), Files{"/sys/fs/cgroup/memory.max"});
  EXPECT_EQ(memory_limit_files("0::/../other\n", mounts), Files{"/sys/fs/cgroup/memory.max"});
}

TEST(Cgroup, Version1IsFoundByItsController) {
  const char* groups = "9:name=systemd:/x\n4:cpu,memory:/docker/c0ffee\n1:cpuset:/other\n0::/\n";
  const char* mounts =
      "40 39 0:30 /docker/c0ffee /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
      "41 39 0:31 /docker/c0ffee /sys/fs/a\\040b\\134 ro master:9 - cgroup cgroup rw,memory,cpu\n";
  EXPECT_EQ(memory_limit_files(groups, mounts), Files{"/sys/fs/a b\\/memory.limit_in_bytes"});
  const char* whole = "41 39 0:31 / /memory ro - cgroup cgroup rw,memory\n";
  EXPECT_EQ(memory_limit_files(groups, whole),
            (Files{"/memory/docker/c0ffee/memory.limit_in_bytes",
                   "/memory/docker/memory.limit_in_bytes", "/memory/memory.limit_in_bytes"}));
}

TEST(Cgroup, TheSmallestLimitCounts) {
  const testing::TempFolder folder;
  std::filesystem::create_directories(folder / "a/b/c");
  const std::string mounts = "31 22 0:27 / " + folder.path() + " rw - cgroup2 none rw";
  const auto limit = [&] { return least_memory_limit(memory_limit_files("0::/a/b/c", mounts)); };
  EXPECT_EQ(limit(), std::nullopt);
  folder.put("a/b/c/memory.max", "max\n");
  folder.put("a/memory.max", "garbage");
  EXPECT_EQ(limit(), std::nullopt);
  folder.put("memory.max", "9223372036854771712\n");
  EXPECT_EQ(limit(), 9223372036854771712U);
  folder.put("a/b/memory.max", "536870912\n");
  EXPECT_EQ(limit(), 536870912U);
  folder.put("a/b/c/memory.max", "1073741824\n");
  EXPECT_EQ(limit(), 536870912U);
}

TEST(Cgroup, TakesAnyBytesWithoutHarm) {
  std::mt19937_64 random(5);
  const std::string letters = "0:/ -\\\n4,abmemory";
  const auto text = [&] {
    std::string out;
    for (uint64_t n = random() % 60; n > 0; --n) out += letters[random() % letters.size()];
    return out;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string mounts = "3 2 0:2 " + text() + " " + text() + " rw - cgroup x rw,memory";
    for (const std::string& file : memory_limit_files(text() + "4:memory:" + text(), mounts)) {
      EXPECT_TRUE(file.ends_with("/memory.limit_in_bytes"));
    }
  }
  memory_limit();
}

}  // namespace
}  // namespace diffattn::io
