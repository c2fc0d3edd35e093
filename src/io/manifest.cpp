// SPDX-License-Identifier: Apache-2.0
#include "io/manifest.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/json.h"
#include "io/file_checksums.h"

namespace diffattn::io {
namespace {

namespace fs = std::filesystem;

constexpr char kManifestFormat[] = "diffattn checkpoint";
constexpr char kChecksumKind[] = "xxh64-16MiB";
constexpr int64_t kManifestVersion = 1;
constexpr size_t kMaxNameBytes = 255;

bool is_name(std::string_view name) noexcept {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
         std::ranges::all_of(name, allowed);
}

void expect_text(const JsonValue& value, const char* expected) {
  if (value.to_string() != expected) value.fail(std::string("\"") + expected + "\"");
}

uint64_t parse_checksum(const JsonValue& value) {
  const std::string& text = value.to_string();
  uint64_t checksum = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, checksum, 16);
  if (error != std::errc() || stop != end || checksum_text(checksum) != text) {
    value.fail("16 hexadecimal digits");
  }
  return checksum;
}

/// Opens the files of the entries inside `folder`, without following symbolic links.
std::vector<File> open_files(const std::string& folder, const std::vector<Manifest::Entry>& all) {
  std::vector<File> files;
  files.reserve(all.size());
  for (const Manifest::Entry& entry : all) {
    const size_t slash = entry.path.find('/');
    const bool nested = slash != std::string::npos;
    const Directory directory =
        Directory::open(nested ? folder + "/" + entry.path.substr(0, slash) : folder);
    files.push_back(
        File::open_in(directory, entry.path.substr(nested ? slash + 1 : 0), Symlinks::kRefuse));
  }
  return files;
}

void expect_sizes(const std::vector<File>& files, const std::vector<Manifest::Entry>& entries,
                  const std::string& source) {
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].size() == entries[i].bytes) continue;
    throw Error(files[i].name(), "expected " + std::to_string(entries[i].bytes) + " bytes " +
                                     source + ", got " + std::to_string(files[i].size()));
  }
}

}  // namespace

bool is_manifest_path(std::string_view path) noexcept {
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return is_name(path);
  return is_name(path.substr(0, slash)) && is_name(path.substr(slash + 1));
}

std::string checksum_text(uint64_t checksum) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(checksum));
  return digits;
}

std::string Manifest::to_json() const {
  nlohmann::json files = nlohmann::json::object();
  for (const Entry& entry : entries) {
    files[entry.path] = {{"bytes", entry.bytes}, {"checksum", checksum_text(entry.checksum)}};
  }
  const nlohmann::json document = {{"format", kManifestFormat},
                                   {"version", kManifestVersion},
                                   {"checksum", kChecksumKind},
                                   {"ranks", ranks},
                                   {"files", std::move(files)}};
  return document.dump(2) + "\n";
}

Manifest Manifest::parse(std::string_view text, const std::string& file) {
  const nlohmann::json document = parse_json(text, file, {.max_depth = 4});
  const JsonValue root(document, file);
  expect_text(root.at("format"), kManifestFormat);
  root.at("version").to_int(kManifestVersion, kManifestVersion);
  expect_text(root.at("checksum"), kChecksumKind);
  Manifest manifest;
  manifest.ranks = root.at("ranks").to_int(1, kMaxRanks);
  const JsonValue files = root.at("files");
  const std::vector<std::string> paths = files.keys();
  if (paths.empty() || paths.size() > kMaxManifestFiles) {
    files.fail("1 to " + std::to_string(kMaxManifestFiles) + " files");
  }
  for (const std::string& path : paths) {
    if (!is_manifest_path(path)) {
      throw Error(file, "key 'files': expected names inside the folder, got " + in_quotes(path));
    }
    const JsonValue entry = files.at(path);
    manifest.entries.push_back(
        {path, entry.at("bytes").to_uint(), parse_checksum(entry.at("checksum"))});
  }
  return manifest;
}

Manifest manifest_of(const std::string& folder, int64_t ranks,
                     const std::vector<Manifest::Entry>& known) {
  std::map<std::string, const Manifest::Entry*> left;
  for (const Manifest::Entry& entry : known) left[entry.path] = &entry;
  Manifest manifest;
  manifest.ranks = ranks;
  std::vector<Manifest::Entry> unread;
  std::error_code failed;
  for (auto entry = fs::recursive_directory_iterator(folder, failed);
       !failed && entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
    if (entry->is_directory()) continue;
    const std::string path = entry->path().lexically_relative(folder).string();
    if (!is_manifest_path(path)) {
      throw Error(folder, "expected names of a checkpoint's files, got " + in_quotes(path));
    }
    const auto found = left.extract(path);
    if (found.empty()) {
      unread.push_back({.path = path});
    } else {
      manifest.entries.push_back(*found.mapped());
    }
  }
  if (failed) throw Error(folder, "could not be listed: " + failed.message());
  if (!left.empty()) throw Error(folder + "/" + left.begin()->first, "is missing");
  expect_sizes(open_files(folder, manifest.entries), manifest.entries,
               "as the process that wrote it told");
  const std::vector<File> files = open_files(folder, unread);
  const std::vector<uint64_t> checksums = file_checksums(files);
  for (size_t i = 0; i < files.size(); ++i) {
    unread[i].bytes = files[i].size();
    unread[i].checksum = checksums[i];
  }
  std::ranges::move(unread, std::back_inserter(manifest.entries));
  std::ranges::sort(manifest.entries, {}, &Manifest::Entry::path);
  return manifest;
}

void check_files(const std::string& folder, const Manifest& manifest) {
  const std::vector<File> files = open_files(folder, manifest.entries);
  expect_sizes(files, manifest.entries, "as in the manifest");
  const std::vector<uint64_t> checksums = file_checksums(files);
  for (size_t i = 0; i < files.size(); ++i) {
    if (checksums[i] == manifest.entries[i].checksum) continue;
    throw Error(files[i].name(), "expected the checksum " +
                                     checksum_text(manifest.entries[i].checksum) +
                                     " as in the manifest, got " + checksum_text(checksums[i]));
  }
}

}  // namespace diffattn::io
