// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/diffattn/analyze/run_analysis.h"
#include "diffattn/analysis/picture.h"

namespace diffattn::app {

/// Writes the HTML page with all maps, with a progress bar.
void write_page(const std::string& path, const AnalysisResult& result);

/// Writes the statistics of all models as CSV.
void write_statistics(const std::string& path, const AnalysisResult& result);

/// Returns the picture of the shown heads; `map` is "all", "1", "2" or "difference".
analysis::Picture picture_of_result(const AnalysisResult& result, const std::string& map);

/// Prints a picture as text, in colour if the terminal allows it.
void print_picture(const analysis::Picture& picture, const analysis::PictureStyle& style);

/// Prints one JSON object, with the maps of the shown heads if `maps` and if they are small enough.
void print_analysis_json(const AnalysisResult& result, bool maps);

/// Prints the statistics of all models as tables.
void print_statistics(const AnalysisResult& result);

}  // namespace diffattn::app
