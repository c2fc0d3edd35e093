// SPDX-License-Identifier: Apache-2.0
#include "analysis/report/check.h"

#include <cmath>
#include <span>

#include "diffattn/error.h"
#include "diffattn/io/error.h"

namespace diffattn::analysis {
namespace {

// Limits the size of the file and the coordinates in the viewer.
constexpr int64_t kMaxTokens = 1 << 16;

std::string item(const std::string& list, size_t index) {
  return list + "[" + std::to_string(index) + "]";
}

void check_index(const std::string& what, int64_t index, int64_t count) {
  if (index >= 0 && index < count) return;
  refuse(what, "an index below " + std::to_string(count), std::to_string(index));
}

void check_size(const std::string& what, size_t size, int64_t expected) {
  if (static_cast<int64_t>(size) == expected) return;
  refuse(what, std::to_string(expected) + " entries", std::to_string(size));
}

void check_finite(const std::string& what, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      refuse(item(what, i), "a finite number", std::to_string(values[i]));
    }
  }
}

void check_sequence(const std::string& what, const Sequence& sequence) {
  const int64_t rows = sequence.row_count();
  const int64_t columns = sequence.column_count();
  if (rows < 1 || rows > kMaxTokens) {
    refuse(what + ".rows", "1 to 65536 tokens", std::to_string(rows));
  }
  if (columns > kMaxTokens) {
    refuse(what + ".columns", "1 to 65536 tokens", std::to_string(columns));
  }
  check_visible(what, sequence.visible_begin, sequence.visible_end, rows, columns);
  if (sequence.question) check_index(what + ".question", *sequence.question, rows);
  for (size_t i = 0; i < sequence.regions.size(); ++i) {
    const Region& region = sequence.regions[i];
    const std::string name = item(what + ".regions", i);
    if (region.begin < 0 || region.begin >= region.end || region.end > columns) {
      refuse(name, "a range within " + std::to_string(columns) + " columns",
             std::to_string(region.begin) + " to " + std::to_string(region.end));
    }
    if (region.kind != "answer" && region.kind != "noise" && region.kind != "other") {
      refuse(name + ".kind", "answer, noise or other", io::in_quotes(region.kind));
    }
  }
}

void check_model(const std::string& what, const ReportModel& model) {
  if (model.layers < 1) refuse(what + ".layers", "at least 1", std::to_string(model.layers));
  if (model.heads < 1) refuse(what + ".heads", "at least 1", std::to_string(model.heads));
  for (size_t i = 0; i < model.lambda.size(); ++i) {
    const LambdaLayer& layer = model.lambda[i];
    check_index(item(what + ".lambda", i) + ".layer", layer.layer, model.layers);
    if (layer.heads.size() != 1) {
      check_size(item(what + ".lambda", i) + ".heads", layer.heads.size(), model.heads);
    }
  }
  const auto names = static_cast<int64_t>(model.statistics.names.size());
  for (size_t i = 0; i < model.statistics.rows.size(); ++i) {
    const StatisticsTable::Row& row = model.statistics.rows[i];
    const std::string name = item(what + ".statistics.rows", i);
    check_index(name + ".layer", row.layer, model.layers);
    check_index(name + ".head", row.head, model.heads);
    check_size(name + ".values", row.values.size(), names);
  }
}

void check_curves(const std::string& what, const Curves& curves) {
  for (size_t i = 0; i < curves.series.size(); ++i) {
    const Series& series = curves.series[i];
    const std::string name = item(what + ".series", i);
    const auto points = static_cast<int64_t>(series.x.size());
    check_size(name + ".y", series.y.size(), points);
    if (series.low.empty() && series.high.empty()) continue;
    check_size(name + ".low", series.low.size(), points);
    check_size(name + ".high", series.high.size(), points);
  }
}

void check_example(const std::string& what, const ReadExample& example) {
  for (size_t i = 0; i < example.lines.size(); ++i) {
    for (const MarkedWord& word : example.lines[i].words) {
      if (word.mark.empty() || word.mark == "answer" || word.mark == "wrong") continue;
      refuse(item(what + ".lines", i) + ".mark", "nothing, answer or wrong",
             io::in_quotes(word.mark));
    }
  }
}

void check_table(const std::string& what, const Table& table) {
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const std::string name = item(what + ".rows", i);
    check_size(name, table.rows[i].size(), static_cast<int64_t>(table.columns.size()));
    for (size_t j = 0; j < table.columns.size(); ++j) {
      const bool number = std::holds_alternative<double>(table.rows[i][j]);
      if (number == table.columns[j].number) continue;
      refuse(item(name, j), table.columns[j].number ? "a number" : "text",
             number ? "a number" : "text");
    }
  }
}

}  // namespace

void refuse(const std::string& what, const std::string& expected, const std::string& got) {
  throw Error("diffattn: " + what + ": expected " + expected + ", got " + got);
}

void check_visible(const std::string& what, const std::vector<int64_t>& begin,
                   const std::vector<int64_t>& end, int64_t rows, int64_t columns) {
  if (begin.empty() && end.empty()) return;
  check_size(what + ".visible_begin", begin.size(), rows);
  check_size(what + ".visible_end", end.size(), rows);
  for (size_t i = 0; i < begin.size(); ++i) {
    if (begin[i] < 0 || begin[i] > end[i] || end[i] > columns) {
      refuse(item(what + ".visible", i), "a range within " + std::to_string(columns) + " columns",
             std::to_string(begin[i]) + " to " + std::to_string(end[i]));
    }
  }
}

void check(const Report& report) {
  if (report.title.empty()) refuse("title", "text", "none");
  for (size_t i = 0; i < report.sequences.size(); ++i) {
    check_sequence(item("sequences", i), report.sequences[i]);
  }
  for (size_t i = 0; i < report.models.size(); ++i) {
    check_model(item("models", i), report.models[i]);
  }
  for (size_t i = 0; i < report.curves.size(); ++i) {
    check_curves(item("curves", i), report.curves[i]);
  }
  for (size_t i = 0; i < report.examples.size(); ++i) {
    check_example(item("examples", i), report.examples[i]);
  }
  for (size_t i = 0; i < report.tables.size(); ++i) {
    check_table(item("tables", i), report.tables[i]);
  }
}

void check(const HeadMaps& maps, const Report& report) {
  check_index("maps.model", maps.model, static_cast<int64_t>(report.models.size()));
  check_index("maps.sequence", maps.sequence, static_cast<int64_t>(report.sequences.size()));
  const ReportModel& model = report.models[static_cast<size_t>(maps.model)];
  const Sequence& sequence = report.sequences[static_cast<size_t>(maps.sequence)];
  check_index("maps.layer", maps.layer, model.layers);
  check_index("maps.head", maps.head, model.heads);
  if (maps.overview_side < 1) {
    refuse("maps.overview_side", "at least 1", std::to_string(maps.overview_side));
  }
  const std::string what =
      "maps of layer " + std::to_string(maps.layer) + ", head " + std::to_string(maps.head) + ": ";
  const int64_t entries = sequence.row_count() * sequence.column_count();
  check_size(what + "p1", maps.p1.size(), entries);
  if (!maps.p2.empty()) check_size(what + "p2", maps.p2.size(), entries);
  if (!maps.difference.empty()) check_size(what + "difference", maps.difference.size(), entries);
  if (maps.p2.empty()) {
    check_size(what + "lambda (without p2)", maps.lambda.size(), 0);
  } else if (maps.lambda.size() != 1) {
    check_size(what + "lambda", maps.lambda.size(), sequence.row_count());
  }
  check_finite(what + "p1", maps.p1);
  check_finite(what + "p2", maps.p2);
  check_finite(what + "lambda", maps.lambda);
  check_finite(what + "difference", maps.difference);
}

}  // namespace diffattn::analysis
