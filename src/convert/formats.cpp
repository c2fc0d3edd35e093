// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "diffattn/convert/convert.h"

namespace diffattn::convert {
namespace {

struct NamedFormat {
  Format format;
  std::string_view name;
};
constexpr std::array<NamedFormat, 7> kFormats = {{
    {Format::kMicrosoft, "microsoft"},
    {Format::kMicrosoftV2, "microsoft_v2"},
    {Format::kDiffLlama, "diffllama"},
    {Format::kLlama, "llama"},
    {Format::kMotif, "motif"},
    {Format::kPhi4Flash, "phi4_flash"},
    {Format::kDiffattn, "diffattn"},
}};

}  // namespace

const std::vector<std::string>& format_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const NamedFormat& item : kFormats) list.emplace_back(item.name);
    return list;
  }();
  return names;
}

std::optional<Format> parse_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &NamedFormat::name);
  if (found == kFormats.end()) return std::nullopt;
  return found->format;
}

std::string_view format_name(Format format) {
  return std::ranges::find(kFormats, format, &NamedFormat::format)->name;
}

}  // namespace diffattn::convert
