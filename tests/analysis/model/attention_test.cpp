// SPDX-License-Identifier: Apache-2.0
//
// Compares statistics and maps of models with plain loops over whole maps.

#include "diffattn/analysis/attention_report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "diffattn/nn/introspective_attention.h"
#include "diffattn/nn/presets.h"
#include "tests/analysis/page.h"

namespace diffattn::analysis {
namespace {

using torch::Tensor;

constexpr int64_t kWidth = 32, kSubHeads = 4, kTokens = 23;

enum class Role { kCausal, kBidirectional, kCross };

struct LayerCase {
  std::string preset;
  Role role;
};

std::string name_of(const ::testing::TestParamInfo<LayerCase>& info) {
  const char* roles[] = {"causal", "bidirectional", "cross"};
  return info.param.preset + "_" + roles[static_cast<int>(info.param.role)];
}

/// Returns every preset in every role that it supports.
std::vector<LayerCase> all_layers() {
  std::vector<LayerCase> cases;
  for (const std::string& preset : nn::preset_names()) {
    cases.push_back({preset, Role::kCausal});
    cases.push_back({preset, Role::kBidirectional});
    if (preset != "dint" && preset != "introspective") cases.push_back({preset, Role::kCross});
  }
  return cases;
}

/// Returns the calls of a layer whose weights are large enough to give different maps.
std::vector<LayerCalls> calls_of_layer(const LayerCase& layer, nn::AttentionMask mask = {},
                                       int64_t batch = 1) {
  torch::manual_seed(7);
  const auto options = nn::PresetOptions(kWidth, kSubHeads)
                           .causal(layer.role == Role::kCausal)
                           .cross_attention(layer.role == Role::kCross);
  const auto attention = nn::make_preset(layer.preset, options);
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : attention->parameters()) {
    if (parameter.dim() == 2) parameter.mul_(3);
  }
  nn::AttentionInput input{.x = torch::randn({batch, kTokens, kWidth})};
  input.mask = mask;
  if (layer.role == Role::kCross) input.context = torch::randn({batch, kTokens + 6, kWidth});
  std::vector<nn::AttentionTrace> traces(1);
  attention->forward(input, &traces[0]);
  return calls_of(traces);
}

/// Computes the ten statistics of one head from whole maps by their definitions, in double.
std::vector<double> naive_statistics(const HeadMaps& maps, const VisibleColumns& visible,
                                     int64_t columns) {
  double rows = 0, entries = 0, sparse = 0, focus = 0, absolute = 0, negative = 0, entropy = 0;
  double sink = 0, most = 0, cancelled = 0, similar = 0, lambda_sum = 0;
  const auto count = static_cast<int64_t>(maps.p1.size()) / columns;
  for (int64_t m = 0; m < count; ++m) {
    const auto row = static_cast<size_t>(m);
    const int64_t begin = visible.begin.empty() ? 0 : visible.begin[row];
    const int64_t end = visible.end.empty() ? columns : visible.end[row];
    const double lambda = maps.p2.empty() ? 0 : maps.lambda[maps.lambda.size() == 1 ? 0 : row];
    lambda_sum += lambda;
    if (begin >= end) continue;
    double sum = 0, row_most = -2;
    const auto at = [&](int64_t n) { return static_cast<size_t>(m * columns + n); };
    const auto entry = [&](int64_t n) {
      return maps.p1[at(n)] - lambda * (maps.p2.empty() ? 0.0 : double{maps.p2[at(n)]});
    };
    for (int64_t n = begin; n < end; ++n) {
      const double a = entry(n), p1 = maps.p1[at(n)];
      const double p2 = maps.p2.empty() ? 0 : maps.p2[at(n)];
      sum += std::abs(a);
      sparse += std::abs(a) < kSparseThreshold;
      focus += std::abs(a) > 0.5;
      negative += a < 0 ? -a : 0;
      row_most = std::max(row_most, a);
      cancelled += std::min(p1, std::max(lambda * p2, 0.0));
      similar += std::min(p1, p2);
    }
    for (int64_t n = begin; n < end; ++n) {
      const double share = std::abs(entry(n)) / sum;
      if (share > 0) entropy -= share * std::log(share);
    }
    sink += entry(begin);
    most += row_most;
    absolute += sum;
    rows += 1;
    entries += static_cast<double>(end - begin);
  }
  const double none = std::nan("");
  const bool plain = maps.p2.empty();
  return {sparse / entries,
          focus / entries,
          absolute / entries,
          negative / rows,
          entropy / rows,
          sink / rows,
          most / rows,
          plain ? none : cancelled / rows,
          plain ? none : lambda_sum / static_cast<double>(count),
          plain ? none : similar / rows};
}

void expect_same(const std::vector<double>& got, const std::vector<double>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const std::string& key = attention_statistics()[i].key;
    if (std::isnan(wanted[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << key;
    } else {
      EXPECT_NEAR(got[i], wanted[i], 2e-5 * std::max(1.0, std::abs(wanted[i]))) << key;
    }
  }
}

class AnalysedLayer : public ::testing::TestWithParam<LayerCase> {};
INSTANTIATE_TEST_SUITE_P(Presets, AnalysedLayer, ::testing::ValuesIn(all_layers()), name_of);

TEST_P(AnalysedLayer, StatisticsAreThoseOfItsMaps) {
  for (const LayerCalls& calls : calls_of_layer(GetParam())) {
    AttentionStatistics statistics;
    statistics.add(calls);
    const StatisticsTable table = statistics.table();
    const VisibleColumns visible = visible_columns(calls[0]);
    ASSERT_EQ(static_cast<int64_t>(table.rows.size()), calls[0].q1.size(2));
    for (const StatisticsTable::Row& row : table.rows) {
      SCOPED_TRACE("head " + std::to_string(row.head));
      const HeadMaps maps = head_maps(calls, row.layer, row.head);
      expect_same(row.values, naive_statistics(maps, visible, calls[0].k1.size(1)));
    }
    EXPECT_EQ(statistics.lambda().empty(), calls[0].single_map);
  }
}

TEST_P(AnalysedLayer, MapsAreProbabilitiesWhereRowsMaySee) {
  for (const LayerCalls& calls : calls_of_layer(GetParam())) {
    const VisibleColumns visible = visible_columns(calls[0]);
    const auto columns = static_cast<size_t>(calls[0].k1.size(1));
    const HeadMaps maps = head_maps(calls, 0, calls[0].q1.size(2) - 1);
    for (const std::vector<float>* plane : {&maps.p1, &maps.p2}) {
      for (size_t m = 0; m < plane->size() / columns; ++m) {
        double sum = 0, hidden = 0;
        for (size_t n = 0; n < columns; ++n) {
          const bool seen = visible.begin.empty() || (static_cast<int64_t>(n) >= visible.begin[m] &&
                                                      static_cast<int64_t>(n) < visible.end[m]);
          (seen ? sum : hidden) += (*plane)[m * columns + n];
        }
        EXPECT_NEAR(sum, 1, 1e-5);
        EXPECT_EQ(hidden, 0);
      }
    }
  }
}

/// Returns the calls of the same layer on other tokens.
LayerCalls other_calls(const LayerCalls& calls, int64_t tokens) {
  LayerCalls out = calls;
  for (nn::HeadTensors& call : out) {
    for (Tensor* tensor : {&call.q1, &call.q2, &call.k1, &call.k2}) {
      *tensor = torch::randn({1, tokens, tensor->size(2), tensor->size(3)});
    }
    if (call.lambda.dim() == 3) call.lambda = torch::rand({1, tokens, call.lambda.size(2)});
  }
  return out;
}

TEST(AttentionStatisticsTest, SeveralTextsAreOneMean) {
  for (const char* preset : {"diffllama", "microsoft_v2"}) {
    const LayerCalls first = calls_of_layer({preset, Role::kCausal}).front();
    const LayerCalls second = other_calls(first, 9);
    AttentionStatistics both, one, two;
    both.add(first);
    both.add(second);
    one.add(first);
    two.add(second);
    const auto value = [](const AttentionStatistics& from, size_t column) {
      return from.table().rows[1].values[column];
    };
    // Means over rows weight all rows equally. Means over entries weight the two texts by their
    // visible entries: 23 * 24 / 2 and 9 * 10 / 2.
    EXPECT_NEAR(value(both, 4), (23 * value(one, 4) + 9 * value(two, 4)) / 32, 1e-9);
    EXPECT_NEAR(value(both, 2), (276 * value(one, 2) + 45 * value(two, 2)) / 321, 1e-9);
    const LambdaLayer lambda = both.lambda()[0];
    EXPECT_EQ(lambda.heads.size(), std::string(preset) == "diffllama" ? 1u : 4u);
    EXPECT_LE(lambda.heads[0].min, lambda.heads[0].mean);
    EXPECT_GE(lambda.heads[0].max, lambda.heads[0].mean);
  }
}

/// Returns the tensors of a call that have a row per token.
std::vector<Tensor*> tokens_of(nn::HeadTensors& call) {
  std::vector<Tensor*> all{&call.q1, &call.q2, &call.k1, &call.k2};
  if (call.lambda.dim() == 3) all.push_back(&call.lambda);
  return all;
}

void expect_same_heads(const AttentionStatistics& got, const AttentionStatistics& wanted,
                       const std::string& what) {
  for (size_t head = 0; head < wanted.table().rows.size(); ++head) {
    for (size_t i = 0; i < attention_statistics().size(); ++i) {
      EXPECT_NEAR(got.table().rows[head].values[i], wanted.table().rows[head].values[i], 1e-6)
          << what << " " << head << " " << attention_statistics()[i].key;
    }
  }
  EXPECT_EQ(got.lambda()[0].heads[0].max, wanted.lambda()[0].heads[0].max) << what;
}

TEST(AttentionStatisticsTest, PaddingAndPackingCountAsTheTextsAlone) {
  for (const LayerCase& layer : {LayerCase{"diffllama", Role::kBidirectional},
                                 {"microsoft_v2", Role::kBidirectional},
                                 {"microsoft_v2", Role::kCausal}}) {
    const LayerCalls whole = calls_of_layer(layer).front();
    // Returns the tokens [begin, end) with `before` other tokens before and `after` after them.
    const auto cut = [&](int64_t begin, int64_t end, int64_t before = 0, int64_t after = 0) {
      LayerCalls part = whole;
      for (Tensor* tensor : tokens_of(part[0])) {
        *tensor = torch::cat(
            {5 * torch::ones_like(tensor->slice(1, 0, before)), tensor->slice(1, begin, end),
             5 * torch::ones_like(tensor->slice(1, 0, after))},
            1);
      }
      return part;
    };
    const auto stacked = [&](LayerCalls one, LayerCalls other) {
      const auto others = tokens_of(other[0]);
      size_t i = 0;
      for (Tensor* tensor : tokens_of(one[0])) *tensor = torch::cat({*tensor, *others[i++]});
      return one;
    };
    AttentionStatistics alone, packed, right, left;
    alone.add(cut(0, 8));
    alone.add(cut(8, kTokens));
    LayerCalls joined = whole;
    for (Tensor* tensor : tokens_of(joined[0])) *tensor = tensor->squeeze(0);
    const Tensor ends = torch::tensor({0, 8, int(kTokens)}, torch::kInt32);
    joined[0].options.cu_seqlens_q(ends).cu_seqlens_k(ends);
    packed.add(joined);
    expect_same_heads(packed, alone, layer.preset + " packed");
    EXPECT_THROW(head_maps(joined, 0, 0), diffattn::Error);
    LayerCalls padded = stacked(cut(0, 8, 0, 7), cut(8, kTokens));
    padded[0].options.key_lengths(torch::tensor({8, 15}, torch::kLong));
    right.add(padded);
    expect_same_heads(right, alone, layer.preset + " padded on the right");
    padded = stacked(cut(0, 8, 6, 1), cut(8, kTokens));
    padded[0].options.key_starts(torch::tensor({6, 0}, torch::kLong));
    padded[0].options.key_lengths(torch::tensor({14, 15}, torch::kLong));
    left.add(padded);
    expect_same_heads(left, alone, layer.preset + " padded on both sides");
  }
}

TEST(AttentionMapsTest, VisibleColumnsOfMasks) {
  const LayerCase layer{"diffllama", Role::kCausal};
  const auto visible = [&](const nn::AttentionMask& mask) {
    return visible_columns(calls_of_layer(layer, mask, 2).front()[0]);
  };
  const VisibleColumns windowed = visible(nn::AttentionMask().window(4));
  EXPECT_EQ(windowed.begin[10], 7);
  EXPECT_EQ(windowed.end[10], 11);
  nn::HeadTensors call = calls_of_layer(layer, nn::AttentionMask(), 2).front()[0];
  call.options.causal(false).window(2, 3);
  const VisibleColumns both_sides = visible_columns(call);
  EXPECT_EQ(both_sides.begin[10], 8);
  EXPECT_EQ(both_sides.end[10], 14);
  EXPECT_EQ(both_sides.end[kTokens - 1], kTokens);
  const VisibleColumns padded =
      visible(nn::AttentionMask().key_starts(torch::tensor({5, 0}, torch::kInt64)));
  EXPECT_EQ(padded.begin[10], 5);
  EXPECT_EQ(padded.begin[3], padded.end[3]);
  Tensor holes = torch::ones({kTokens, kTokens}, torch::kBool);
  holes[10].slice(0, 0, 3).fill_(false);
  const VisibleColumns masked = visible(nn::AttentionMask().mask(holes));
  EXPECT_EQ(masked.begin[10], 3);
  EXPECT_EQ(masked.begin[11], 0);
}

TEST(AttentionMapsTest, MassIsASumOfTheMap) {
  const LayerCalls calls = calls_of_layer({"microsoft_v2", Role::kCausal}).front();
  const std::vector<double> mass = mass_on(calls[0], 20, {{3, 7}, {9, 10}});
  for (int64_t head = 0; head < 4; ++head) {
    const HeadMaps maps = head_maps(calls, 0, head);
    const std::vector<float> difference = difference_of(maps, kTokens);
    double sum = 0;
    for (const int64_t n : {3, 4, 5, 6, 9}) {
      sum += difference[static_cast<size_t>(20 * kTokens + n)];
    }
    EXPECT_NEAR(mass[static_cast<size_t>(head)], sum, 1e-6);
  }
}

TEST(AttentionReportTest, ChoosesTheStrongestHead) {
  StatisticsTable table;
  table.names = {{"a", "", ""}, {"b", "", ""}};
  table.rows = {{0, 0, {std::nan(""), 2}}, {0, 1, {std::nan(""), 5}}, {1, 0, {std::nan(""), 3}}};
  const HeadIndex head = strongest_head(table, {"missing", "a", "b"});
  EXPECT_EQ(head.layer, 0);
  EXPECT_EQ(head.head, 1);
}

TEST(AttentionReportTest, RefusesTokensOfAnotherText) {
  ModelAttention model;
  model.name = "m";
  EXPECT_THROW(describe(model), diffattn::Error);
  model.calls = calls_of_layer({"diffllama", Role::kCausal}).front();
  model.sequence.rows = {"only", "two"};
  EXPECT_THROW(describe(model), diffattn::Error);
}

/// Returns a model with random queries and keys.
ModelAttention random_model(int64_t layers, int64_t heads, int64_t tokens) {
  torch::manual_seed(11);
  ModelAttention model;
  model.name = "m";
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto vectors = [&] { return 3 * torch::randn({1, tokens, heads, 4}); };
    model.calls.push_back({.q1 = vectors(),
                           .q2 = vectors(),
                           .k1 = vectors(),
                           .k2 = vectors(),
                           .v = vectors(),
                           .lambda = torch::tensor(0.5)});
  }
  model.sequence.rows.assign(static_cast<size_t>(tokens), "t");
  describe(model);
  return model;
}

struct PageCase {
  int64_t layers, heads, tokens, max_bytes;
  int64_t models = 1, max_opened_bytes = ReportOptions().max_opened_bytes;
  bool all_exact = false, opened_exact = true;
};

TEST(AttentionReportTest, MapsOfAPageHaveABoundOnTheirBytes) {
  const testing::TempFolder folder;
  const int64_t of_600 = 600 * 600 * 3 * 2 * 4 / 3;  // of one head, without its coarse level
  for (const PageCase& one : {
           PageCase{.layers = 2, .heads = 2, .tokens = 40, .max_bytes = 1 << 20, .all_exact = true},
           PageCase{.layers = 3, .heads = 4, .tokens = 600, .max_bytes = 1 << 20},
           PageCase{.layers = 12, .heads = 8, .tokens = 70, .max_bytes = 100 << 10},
           PageCase{.layers = 24, .heads = 16, .tokens = 40, .max_bytes = 30 << 10},
           // The coarse level counts.
           PageCase{.layers = 1, .heads = 2, .tokens = 600, .max_bytes = 2 * of_600},
           // The opened heads of all models count.
           PageCase{.layers = 1,
           .heads = 2,
           .tokens = 600,
           .max_bytes = 1 << 20,
           .models = 2,
           .max_opened_bytes = 2 * of_600,
           .opened_exact = false},
       }) {
    const std::string path = folder / "page.html";
    const std::vector<ModelAttention> models(static_cast<size_t>(one.models),
                                             random_model(one.layers, one.heads, one.tokens));
    Report report;
    report.title = "page";
    ReportOptions options;
    options.max_bytes = one.max_bytes;
    options.max_opened_bytes = one.max_opened_bytes;
    write_report(path, report, models, options);
    const testing::Page page(testing::slurp(path));
    ASSERT_EQ(page.maps.size(), static_cast<size_t>(one.models * one.layers * one.heads));
    int64_t opened = 0, others = 0;
    for (size_t map = 0; map < page.maps.size(); ++map) {
      const bool is_opened = page.maps[map]["layer"] == 0 && page.maps[map]["head"] == 0;
      const bool is_exact = page.maps[map]["levels"].back()["level"] == 0 &&
                            page.maps[map]["levels"].back()["format"] != "q8";
      EXPECT_EQ(is_exact, one.all_exact || (is_opened && one.opened_exact)) << one.tokens;
      (is_opened ? opened : others) += page.bytes(map);
    }
    EXPECT_LE(others, one.max_bytes) << one.tokens << " tokens, " << one.layers << " layers";
    EXPECT_LE(opened, one.max_opened_bytes);
    if (one.all_exact) {
      EXPECT_LE(opened + others, one.max_bytes);
    }
  }
}

}  // namespace
}  // namespace diffattn::analysis
