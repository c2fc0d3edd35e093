// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace diffattn::analysis {

/// The names of a statistic in tables and menus.
struct Statistic {
  std::string key;          // "negative_mass": the name in JSON and CSV
  std::string label;        // "negative mass"
  std::string description;  // one sentence
};

/// A table with one row of numbers per layer and head.
struct StatisticsTable {
  struct Row {
    int64_t layer = 0;
    int64_t head = 0;
    std::vector<double> values;  // one per name; NaN if the statistic does not apply
  };
  std::vector<Statistic> names;
  std::vector<Row> rows;
};

/// Returns the statistics of a head over the visible entries A of its map: sparsity, focus,
/// mean_abs, negative_mass, entropy, sink_mass, row_max, noise_cancelled, lambda, similarity.
const std::vector<Statistic>& attention_statistics();

/// Returns CSV (RFC 4180) with a header line `layer,head,<key>...`. Numbers have up to 17
/// significant digits and read back exactly; a number that is not finite is an empty field.
std::string to_csv(const StatisticsTable& table);

/// Returns CSV of several tables with the same statistics; the first column is `model`.
std::string to_csv(const std::vector<std::pair<std::string, StatisticsTable>>& tables);

/// Returns `[{"layer": 0, "head": 0, "<key>": 0.5, ...}, ...]`; a number that is not finite is
/// null.
std::string to_json(const StatisticsTable& table);

/// A half-open range of key positions with a meaning in the task.
struct Region {
  std::string name;
  std::string kind;  // "answer", "noise" or "other"; sets the colour
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const Region&) const = default;
};

/// The tokens of a set of maps: M queries (rows) and N keys (columns).
struct Sequence {
  std::string name;
  std::vector<std::string> rows;     // [M] any bytes; the page shows them as text, never as markup
  std::vector<std::string> columns;  // [N], or empty if keys and queries are the same tokens
  /// Row m may see the columns [visible_begin[m], visible_end[m]). Both empty: all columns.
  std::vector<int64_t> visible_begin;
  std::vector<int64_t> visible_end;
  std::vector<Region> regions;
  /// The row that asks for the answer. The page opens on it; without one, on the last row.
  std::optional<int64_t> question;

  bool operator==(const Sequence&) const = default;
  int64_t row_count() const { return static_cast<int64_t>(rows.size()); }
  int64_t column_count() const {
    return static_cast<int64_t>(columns.empty() ? rows.size() : columns.size());
  }
};

/// lambda of one head, over all tokens if it depends on the token.
struct LambdaValue {
  double mean = 0;
  double min = 0;
  double max = 0;
};

struct LambdaLayer {
  int64_t layer = 0;
  std::optional<double> init;      // lambda_init, if the variant has one
  std::vector<LambdaValue> heads;  // one value if all heads share lambda
};

struct ReportModel {
  std::string name;
  std::string description;
  int64_t layers = 0;
  int64_t heads = 0;
  std::vector<LambdaLayer> lambda;  // empty for a plain model
  StatisticsTable statistics;
};

struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
  std::vector<double> low;  // low and high: a band around y; both empty or as long as y
  std::vector<double> high;
};

struct Curves {
  std::string name;
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool log_y = false;
  std::vector<Series> series;
  std::string note = {};  // a sentence below the curves, or empty
};

struct TableColumn {
  enum class Better { kNeither, kHigher, kLower };
  std::string label;
  bool number = true;
  int digits = 4;                    // significant digits
  Better better = Better::kNeither;  // the page marks the best value of the column
};

struct Table {
  std::string name;
  std::string note;
  std::vector<TableColumn> columns;
  std::vector<std::vector<std::variant<std::string, double>>> rows;
};

/// A word of an example, with a mark: "" (none), "answer" or "wrong".
struct MarkedWord {
  std::string text;
  std::string mark;
};

/// One example of the task in words: the input, what each model made of it, and what is right.
struct ReadExample {
  struct Line {
    std::string label;
    std::vector<MarkedWord> words;
  };
  std::string name;
  std::string note;
  std::vector<Line> lines;
};

/// A command to run next and what it is for.
struct NextCommand {
  std::string purpose;
  std::string command;
};

/// A report without its maps. Only `title` is required. The page shows the verdict, the first two
/// curves and the weights of the question's row first, then the examples, the other curves and the
/// notes, then the tables, folded, and the commands.
struct Report {
  std::string title;
  std::string subtitle;
  std::vector<std::string> verdict;  // one paragraph each
  std::vector<std::string> notes;    // one paragraph each
  std::vector<ReadExample> examples;
  std::vector<NextCommand> commands;
  std::vector<Sequence> sequences;
  std::vector<ReportModel> models;
  std::vector<Curves> curves;
  std::vector<Table> tables;
};

/// The storage format of map entries. kAuto means kFloat32 up to 256 tokens, kFloat16 up to 1024
/// and kByte for more.
enum class Precision { kAuto, kFloat32, kFloat16, kByte };

/// The maps of one head on one sequence, row-major [M, N].
struct HeadMaps {
  int64_t model = 0;
  int64_t sequence = 0;
  int64_t layer = 0;
  int64_t head = 0;
  std::vector<float> p1;
  std::vector<float> p2;          // empty for plain attention
  std::vector<float> lambda;      // one number or [M]; empty if p2 is empty
  std::vector<float> difference;  // empty: p1 - lambda p2, or p1 without p2
  bool full = true;               // false: store only a downsampled map, in bytes
  int64_t overview_side = 512;    // largest number of rows or columns of a downsampled map
  Precision precision = Precision::kAuto;
};

/// Returns the final map, row-major [M, N]: `difference`, or p1 - lambda p2, or p1 without p2.
std::vector<float> difference_of(const HeadMaps& maps, int64_t columns);

/// Writes one self-contained HTML file. It takes one map at a time, so only one needs to be in
/// memory. The file becomes visible at commit() (see io::AtomicFile).
///
/// The constructor and add() throw diffattn::Error if sizes in a Report or map contradict
/// each other; the message names the member, the expected size and the actual one. They throw
/// io::Error if the path cannot be written. docs/report_format.md describes the format.
class ReportWriter {
 public:
  ReportWriter(const std::string& path, const Report& report);
  ReportWriter(ReportWriter&&) noexcept;
  ~ReportWriter();

  void add(const HeadMaps& maps);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace diffattn::analysis
