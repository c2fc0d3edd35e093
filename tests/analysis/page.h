// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "diffattn/error.h"
#include "tests/io/test_files.h"

namespace diffattn::analysis::testing {

using io::testing::slurp;
using io::testing::TempFolder;

/// Returns what() of the diffattn::Error that the call throws.
template <typename Call>
std::string argument_error(Call&& call) {
  try {
    call();
  } catch (const diffattn::Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// Reads a report file; implements only what docs/report_format.md says.
class Page {
 public:
  explicit Page(std::string html) : html_(std::move(html)) {
    header = nlohmann::json::parse(element("<script type=\"application/json\" id=\"report\">"));
    const std::string opening = "<script type=\"application/json\" class=\"map\">";
    for (size_t at = html_.find(opening); at != std::string::npos;
         at = html_.find(opening, at + 1)) {
      maps.push_back(nlohmann::json::parse(text_at(at + opening.size())));
    }
  }

  nlohmann::json level(size_t map, int level) const {
    for (const nlohmann::json& one : maps.at(map)["levels"]) {
      if (one["level"] == level) return one;
    }
    throw std::runtime_error("no such level");
  }

  /// Returns the bytes that the maps of a head take in the file.
  int64_t bytes(size_t map) const {
    int64_t sum = 0;
    for (const nlohmann::json& one : maps.at(map)["levels"]) {
      sum += static_cast<int64_t>(block(one["block"]).size());
    }
    return sum;
  }

  /// Returns all entries of a map on a level, row by row.
  std::vector<float> entries(size_t map, int at_level, const std::string& plane) const;

  nlohmann::json header;
  std::vector<nlohmann::json> maps;

 private:
  std::string text_at(size_t at) const {
    return html_.substr(at, html_.find("</script>", at) - at);
  }
  std::string element(const std::string& opening) const {
    const size_t at = html_.find(opening);
    if (at == std::string::npos) throw std::runtime_error("no element " + opening);
    return text_at(at + opening.size());
  }

  std::string block(const std::string& id) const {
    return element("<script type=\"text/plain\" id=\"" + id + "\">");
  }

  std::string html_;
};

}  // namespace diffattn::analysis::testing
