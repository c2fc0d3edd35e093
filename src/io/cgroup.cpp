// SPDX-License-Identifier: Apache-2.0
#include "io/cgroup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

namespace diffattn::io {
namespace {

std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(mark);
    parts.push_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool lists(std::string_view names, std::string_view name) {
  const auto all = split(names, ',');
  return std::ranges::find(all, name) != all.end();
}

/// Decodes octal escapes: mountinfo writes a space as \040, for example.
std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(digits, digits + 3, code, 8).ptr == digits + 3 && code < 256) {
      out += static_cast<char>(code);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

/// A mounted cgroup hierarchy.
struct Mount {
  bool version2 = false;
  std::string root, point;  // the topmost group and the mount point
};

/// Parses a line of mountinfo: 36 35 98:0 /root /point options [tags] - type source super-options.
/// Returns nullopt if the line does not mount a hierarchy with memory limits.
std::optional<Mount> memory_mount(std::string_view line) {
  const size_t dash = line.find(" - ");
  if (dash == line.npos) return {};
  const auto front = split(line.substr(0, dash), ' '), back = split(line.substr(dash + 3), ' ');
  if (front.size() < 6 || back.size() < 3) return {};
  const bool version2 = back[0] == "cgroup2";
  if (!version2 && !(back[0] == "cgroup" && lists(back[2], "memory"))) return {};
  return Mount{version2, unescaped(front[3]), unescaped(front[4])};
}

/// Returns the group of the process in that hierarchy, from a line 0::/a/b or 4:memory:/a/b.
std::optional<std::string> group_in(const Mount& mount, std::string_view groups) {
  for (const std::string_view line : split(groups, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view names = line.substr(first + 1, second - first - 1);
    if (mount.version2 ? names.empty() : lists(names, "memory")) {
      return std::string(line.substr(second + 1));
    }
  }
  return {};
}

/// Returns the path of `group` relative to `root`: "" for the root itself and for groups outside
/// it.
std::string below_root(const std::string& group, const std::string& root) {
  const std::string top = root == "/" ? "" : root;
  if (!group.starts_with(top + "/") || group.find("/..") != group.npos) return "";
  const std::string rest = group.substr(top.size());
  return rest == "/" ? "" : rest;
}

}  // namespace

std::vector<std::string> memory_limit_files(std::string_view groups, std::string_view mounts) {
  std::vector<std::string> files;
  for (const std::string_view line : split(mounts, '\n')) {
    const auto mount = memory_mount(line);
    if (!mount) continue;
    const auto group = group_in(*mount, groups);
    if (!group) continue;
    const char* const name = mount->version2 ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::string path = below_root(*group, mount->root);; path.resize(path.rfind('/'))) {
      files.push_back(mount->point + path + name);
      if (path.empty()) break;
    }
  }
  return files;
}

std::optional<uint64_t> least_memory_limit(const std::vector<std::string>& files) {
  std::optional<uint64_t> least;
  for (const std::string& path : files) {
    std::ifstream file(path);
    uint64_t limit = 0;
    if (file >> limit && (!least || limit < *least)) least = limit;
  }
  return least;
}

std::optional<uint64_t> memory_limit() {
  const auto text = [](const char* path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  return least_memory_limit(
      memory_limit_files(text("/proc/self/cgroup"), text("/proc/self/mountinfo")));
}

}  // namespace diffattn::io
