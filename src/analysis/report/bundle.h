// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace diffattn::analysis {

/// The parts of the viewer's page that viewer/build.py makes: up to the title, from there to the
/// header of the report, from the header to the maps (with the script), and the end of the page.
struct ViewerBundle {
  std::string_view before_title;
  std::string_view before_header;
  std::string_view before_maps;
  std::string_view end;
};

ViewerBundle viewer_bundle();

}  // namespace diffattn::analysis
