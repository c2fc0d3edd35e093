// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "compare/compare.h"

namespace diffattn::compare {

inline analysis::Curves empty_curves(const std::string& name, const std::string& x,
                                     const std::string& y) {
  analysis::Curves curves;
  curves.name = name;
  curves.x_label = x;
  curves.y_label = y;
  return curves;
}

inline analysis::Series empty_series(const std::string& name) {
  analysis::Series series;
  series.name = name;
  return series;
}

}  // namespace diffattn::compare
