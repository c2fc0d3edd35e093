// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace diffattn::analysis {

/// The viewer as viewer/build.py bundles it: the page up to its title, from there to the payload,
/// and from the payload's header to the maps (the script).
struct ViewerBundle {
  std::string_view before_title;
  std::string_view before_header;
  std::string_view before_maps;
  std::string_view end;
};

ViewerBundle viewer_bundle();

}  // namespace diffattn::analysis
