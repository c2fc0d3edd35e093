// SPDX-License-Identifier: Apache-2.0
#include "diffattn/analysis/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "diffattn/io/error.h"
#include "tests/analysis/page.h"
#include "tests/analysis/synthetic.h"

namespace diffattn::analysis::testing {
namespace {

using nlohmann::json;

Report one_head_report(const Sequence& sequence) {
  Report report;
  report.title = "title";
  report.sequences = {sequence};
  report.models = {{"model", "", 1, 1, {}, {}}};
  return report;
}

std::string written(const Report& report, const std::vector<HeadMaps>& maps) {
  const TempFolder folder;
  ReportWriter writer(folder / "report.html", report);
  for (const HeadMaps& one : maps) writer.add(one);
  writer.commit();
  return slurp(folder / "report.html");
}

TEST(Report, HoldsEveryEntryExactlyWhereTheMapIsSmall) {
  const Sequence sequence = needle_sequence();
  const HeadMaps maps = synthetic_maps(sequence, {});
  const Page page(written(one_head_report(sequence), {maps}));
  ASSERT_EQ(page.maps.size(), 1u);
  EXPECT_EQ(page.entries(0, 0, "p1"), maps.p1);
  EXPECT_EQ(page.entries(0, 0, "p2"), maps.p2);
  EXPECT_FALSE(page.level(0, 0)["planes"].contains("difference"));
  EXPECT_EQ(page.maps[0]["lambda"][0].get<float>(), maps.lambda[0]);
}

TEST(Report, HalfPrecisionStaysWithinHalfAStep) {
  const Sequence sequence = numbered_sequence(300);
  const HeadMaps maps = synthetic_maps(sequence, {});
  const Page page(written(one_head_report(sequence), {maps}));
  EXPECT_EQ(page.level(0, 0)["format"], "f16");
  const std::vector<float> read = page.entries(0, 0, "p1");
  ASSERT_EQ(read.size(), maps.p1.size());
  for (size_t i = 0; i < read.size(); ++i) {
    ASSERT_NEAR(read[i], maps.p1[i], std::max(maps.p1[i] * 0x1p-11, 0x1p-25)) << i;
  }
}

TEST(Report, BytesKeepSignAndRelativeSize) {
  const Sequence sequence = numbered_sequence(300);
  HeadMaps maps = synthetic_maps(sequence, {});
  maps.precision = Precision::kByte;
  const Page page(written(one_head_report(sequence), {maps}));
  EXPECT_EQ(page.level(0, 0)["format"], "q8");
  const std::vector<float> read = page.entries(0, 0, "difference");
  for (size_t i = 0; i < read.size(); ++i) {
    const float exact = maps.p1[i] - maps.lambda[0] * maps.p2[i];
    // The error is at most half a step of (q / 127)^2 at a scale of at most 1.
    const double bound = std::sqrt(std::fabs(exact)) / 127 + 1.0 / (127 * 127);
    ASSERT_NEAR(read[i], exact, bound) << i;
    ASSERT_TRUE(read[i] == 0 || std::signbit(read[i]) == std::signbit(exact)) << i;
  }
}

TEST(Report, CoarseLevelsKeepALoneNegativeEntry) {
  const Sequence sequence = numbered_sequence(1100);
  HeadMaps maps = synthetic_maps(sequence, {});
  const size_t lone = 1001 * 1100 + 703;
  maps.p1[lone] = 0;
  maps.p2[lone] = 0.9f;
  const Page page(written(one_head_report(sequence), {maps}));
  ASSERT_EQ(page.maps[0]["levels"][0]["level"], 2);
  const std::vector<float> coarse = page.entries(0, 2, "difference");
  EXPECT_NEAR(coarse[(1001 / 4) * 275 + 703 / 4], -0.9f * maps.lambda[0], 1e-3);
}

TEST(Report, AnOverviewHoldsOneLevelInBytes) {
  const Sequence sequence = numbered_sequence(2100);
  HeadMaps maps = synthetic_maps(sequence, {});
  maps.full = false;
  maps.overview_side = 300;
  const Page page(written(one_head_report(sequence), {maps}));
  ASSERT_EQ(page.maps[0]["levels"].size(), 1u);
  EXPECT_EQ(page.maps[0]["levels"][0]["level"], 3);
  EXPECT_EQ(page.maps[0]["levels"][0]["format"], "q8");
  EXPECT_EQ(page.entries(0, 3, "p1").size(), 263u * 263u);
}

TEST(Report, AnOverviewOfAShortTextIsSmallerThanItsEntries) {
  const Sequence sequence = numbered_sequence(200);
  HeadMaps maps = synthetic_maps(sequence, {});
  const std::string whole = written(one_head_report(sequence), {maps});
  maps.full = false;
  maps.overview_side = 64;
  const std::string overview = written(one_head_report(sequence), {maps});
  const Page page(overview);
  EXPECT_EQ(page.entries(0, 2, "difference").size(), 50u * 50u);
  EXPECT_LT(overview.size() + 50000, whole.size());
}

TEST(Report, CompressedMapsTakeLessThanHalfOfTheirEntries) {
  const Sequence sequence = numbered_sequence(240);
  const std::string empty = written(one_head_report(sequence), {});
  const std::string html = written(one_head_report(sequence), {synthetic_maps(sequence, {})});
  // Two planes of float32, encoded as base64. The causal mask hides half of the entries.
  EXPECT_LT(html.size() - empty.size(), 2u * 240 * 240 * 4 * 4 / 3 / 2);
}

TEST(Report, HoldsVerdictExamplesCommandsAndTheQuestion) {
  Sequence sequence = numbered_sequence(8);
  sequence.question = 6;
  Report report = one_head_report(sequence);
  report.verdict = {"one sentence"};
  report.examples = {{"one document", "note", {{"written", {{"w1", "answer"}, {"w2", "wrong"}}}}}};
  report.commands = {{"more seeds", "diffattn compare"}};
  report.curves = {{"c", "x", "y", false, false, {}, "why it rises"}};
  const Page page(written(report, {}));
  EXPECT_EQ(page.header["version"], 2);
  EXPECT_EQ(page.header["sequences"][0]["question"], 6);
  EXPECT_EQ(page.header["verdict"][0], "one sentence");
  EXPECT_EQ(page.header["examples"][0]["lines"][0]["words"][1], json::array({"w2", "wrong"}));
  EXPECT_EQ(page.header["commands"][0]["command"], "diffattn compare");
  EXPECT_EQ(page.header["curves"][0]["note"], "why it rises");
}

TEST(Report, TilesOfZerosAreLeftOut) {
  const Sequence sequence = numbered_sequence(600);
  const Page page(written(one_head_report(sequence), {synthetic_maps(sequence, {})}));
  EXPECT_EQ(page.level(0, 0)["planes"]["p1"].size(), 6u);  // the causal mask leaves 6 of 9 tiles
}

TEST(Report, PlainAttentionHasOneMap) {
  const Sequence sequence = needle_sequence();
  const HeadMaps maps = synthetic_maps(sequence, {.differential = false});
  const Page page(written(one_head_report(sequence), {maps}));
  EXPECT_EQ(page.level(0, 0)["planes"].size(), 1u);
  EXPECT_EQ(page.entries(0, 0, "p1"), maps.p1);
}

TEST(Report, HostileTextStaysInsideItsStrings) {
  Sequence sequence;
  sequence.rows = hostile_tokens();
  sequence.name = "</script>";
  Report report = one_head_report(sequence);
  report.title = "</title><script>alert(1)</script>";
  const std::string html = written(report, {synthetic_maps(sequence, {})});
  // Only the viewer's script may run; all other script elements hold data.
  size_t running = 0;
  for (size_t at = html.find("<script"); at != std::string::npos;
       at = html.find("<script", at + 1)) {
    running += html.compare(at, 8, "<script>") == 0;
  }
  EXPECT_EQ(running, 1u);
  EXPECT_EQ(html.find("alert(2)<"), std::string::npos);
  EXPECT_EQ(html.find("onerror=alert(3)>"), std::string::npos);
  EXPECT_EQ(html.find('\0'), std::string::npos);
  EXPECT_EQ(html.find("\xe2\x80\xa8"), std::string::npos);
  const Page page(html);
  const std::vector<std::string> tokens = hostile_tokens();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string read = page.header["sequences"][0]["rows"][i];
    const bool broken =
        tokens[i].find('\xff') != std::string::npos || tokens[i].find('\xed') != std::string::npos;
    if (broken) {
      EXPECT_NE(read.find("\xef\xbf\xbd"), std::string::npos) << i;
    } else {
      EXPECT_EQ(read, tokens[i]) << i;
    }
  }
}

TEST(Report, PolicyForbidsEverythingThatIsNotInside) {
  const std::string html = written(one_head_report(needle_sequence()), {});
  EXPECT_NE(html.find("content=\"default-src 'none'; script-src 'sha256-"), std::string::npos);
  EXPECT_EQ(html.find("unsafe"), std::string::npos);
  EXPECT_EQ(
      html.find("http://") == std::string::npos ||
          html.find("http://", html.find("http://www.w3.org/2000/svg") + 1) == std::string::npos,
      true);
  EXPECT_EQ(html.find("https://"), std::string::npos);
}

TEST(Report, NumbersThatAreNotFiniteBecomeNull) {
  Report report;
  report.title = "t";
  report.curves = {
      {"c", "x", "y", false, false, {{"s", {0, 1}, {std::nan(""), INFINITY}, {}, {}}}}};
  const Page page(written(report, {}));
  EXPECT_TRUE(page.header["curves"][0]["series"][0]["y"][0].is_null());
  EXPECT_TRUE(page.header["curves"][0]["series"][0]["y"][1].is_null());
}

TEST(Report, RefusesWhatContradictsItself) {
  const Sequence sequence = numbered_sequence(8);
  const Report good = one_head_report(sequence);
  const TempFolder folder;
  const auto report_error = [&](auto&& change) {
    Report report = good;
    change(report);
    return argument_error([&] { ReportWriter(folder / "a.html", report).commit(); });
  };
  EXPECT_EQ(report_error([](Report& r) { r.title = ""; }),
            "diffattn: title: expected text, got none");
  EXPECT_EQ(report_error([](Report& r) { r.sequences[0].rows.clear(); }),
            "diffattn: sequences[0].rows: expected 1 to 65536 tokens, got 0");
  EXPECT_EQ(report_error([](Report& r) { r.sequences[0].visible_end[3] = 9; }),
            "diffattn: sequences[0].visible[3]: expected a range within 8 columns, got 0 to 9");
  EXPECT_EQ(report_error([](Report& r) {
              r.sequences[0].regions = {{"r", "answer", 7, 9}};
            }),
            "diffattn: sequences[0].regions[0]: expected a range within 8 columns, got 7 to 9");
  EXPECT_EQ(report_error([](Report& r) { r.sequences[0].question = 8; }),
            "diffattn: sequences[0].question: expected an index below 8, got 8");
  EXPECT_EQ(report_error([](Report& r) {
              r.examples = {{"e", "", {{"l", {{"w", "bold"}}}}}};
            }),
            "diffattn: examples[0].lines[0].mark: expected nothing, answer or wrong, got 'bold'");
  EXPECT_EQ(report_error([](Report& r) { r.models[0].layers = 0; }),
            "diffattn: models[0].layers: expected at least 1, got 0");
  EXPECT_EQ(report_error([](Report& r) {
              r.curves = {{"c", "", "", false, false, {{"s", {1}, {}, {}, {}}}}};
            }),
            "diffattn: curves[0].series[0].y: expected 1 entries, got 0");
  EXPECT_EQ(report_error([](Report& r) {
              r.tables = {{"t", "", {{"a", true}}, {{"text"}}}};
            }),
            "diffattn: tables[0].rows[0][0]: expected a number, got text");
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(Report, RefusesMapsThatDoNotFit) {
  const Sequence sequence = numbered_sequence(8);
  const TempFolder folder;
  ReportWriter writer(folder / "a.html", one_head_report(sequence));
  const HeadMaps good = synthetic_maps(sequence, {});
  const auto map_error = [&](auto&& change) {
    HeadMaps maps = good;
    change(maps);
    return argument_error([&] { writer.add(maps); });
  };
  EXPECT_EQ(map_error([](HeadMaps& m) { m.layer = 1; }),
            "diffattn: maps.layer: expected an index below 1, got 1");
  EXPECT_EQ(map_error([](HeadMaps& m) { m.model = -1; }),
            "diffattn: maps.model: expected an index below 1, got -1");
  EXPECT_EQ(map_error([](HeadMaps& m) { m.p2.pop_back(); }),
            "diffattn: maps of layer 0, head 0: p2: expected 64 entries, got 63");
  EXPECT_EQ(map_error([](HeadMaps& m) { m.lambda.assign(3, 0); }),
            "diffattn: maps of layer 0, head 0: lambda: expected 8 entries, got 3");
  EXPECT_EQ(map_error([](HeadMaps& m) { m.p1[9] = std::nanf(""); }),
            "diffattn: maps of layer 0, head 0: p1[9]: expected a finite number, got nan");
}

TEST(Report, AppearsOnCommitOnly) {
  const TempFolder folder;
  { const ReportWriter writer(folder / "a.html", one_head_report(needle_sequence())); }
  EXPECT_EQ(folder.entries(), 0u);
  EXPECT_THROW(ReportWriter(folder / "no/such/a.html", one_head_report(needle_sequence())),
               io::Error);
}

TEST(Statistics, CsvAndJsonReadBackExactly) {
  StatisticsTable table;
  table.names = {{"plain", "", ""}, {"with,comma \"q\"", "", ""}};
  table.rows = {{0, 1, {0.1, std::nan("")}}, {2, 3, {-1e-300, 1.0 / 3}}};
  EXPECT_EQ(to_csv(table),
            "layer,head,plain,\"with,comma "
            "\"\"q\"\"\"\r\n0,1,0.1,\r\n2,3,-1e-300,0.3333333333333333\r\n");
  const json read = json::parse(to_json(table));
  EXPECT_EQ(read[1]["plain"].get<double>(), -1e-300);
  EXPECT_TRUE(read[0]["with,comma \"q\""].is_null());
}

}  // namespace
}  // namespace diffattn::analysis::testing
