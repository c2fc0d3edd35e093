// SPDX-License-Identifier: Apache-2.0
#include "tests/analysis/synthetic.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

namespace diffattn::analysis::testing {
namespace {

constexpr int64_t kDim = 12;

// Generates normal numbers here, since those of the standard library differ between
// implementations.
std::vector<float> normal(std::mt19937_64& random, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  for (float& value : out) {
    value = static_cast<float>(std::sqrt(-2 * std::log(uniform())) *
                               std::cos(2 * 3.14159265358979 * uniform()));
  }
  return out;
}

float dot(const std::vector<float>& a, int64_t i, const std::vector<float>& b, int64_t j) {
  float sum = 0;
  for (int64_t k = 0; k < kDim; ++k) {
    sum += a[static_cast<size_t>(i * kDim + k)] * b[static_cast<size_t>(j * kDim + k)];
  }
  return sum;
}

void softmax(float* row, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const float most = *std::max_element(row + begin, row + end);
  double sum = 0;
  for (int64_t n = begin; n < end; ++n) sum += row[n] = std::exp(row[n] - most);
  for (int64_t n = begin; n < end; ++n) row[n] = static_cast<float>(row[n] / sum);
}

struct Visible {
  int64_t begin = 0;
  int64_t end = 0;
};

Visible visible(const Sequence& sequence, int64_t row) {
  if (sequence.visible_begin.empty()) return {0, sequence.column_count()};
  const auto at = static_cast<size_t>(row);
  return {sequence.visible_begin[at], sequence.visible_end[at]};
}

}  // namespace

double lambda_init(int64_t layer) {
  return 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(layer));
}

HeadMaps synthetic_maps(const Sequence& sequence, const SyntheticHead& head) {
  const int64_t rows = sequence.row_count();
  const int64_t columns = sequence.column_count();
  std::mt19937_64 random(head.seed * 1000003 + static_cast<uint64_t>(head.layer * 64 + head.head));
  const std::vector<float> q = normal(random, rows * kDim);
  const std::vector<float> k = normal(random, columns * kDim);
  const std::vector<float> k2 = normal(random, columns * kDim);
  const std::vector<float> tilt = normal(random, columns);
  const Region* answer = sequence.regions.empty() ? nullptr : &sequence.regions.front();

  HeadMaps maps;
  maps.layer = head.layer;
  maps.head = head.head;
  maps.p1.assign(static_cast<size_t>(rows * columns), 0);
  if (head.differential) maps.p2 = maps.p1;
  const float local = 0.6f + 0.5f * static_cast<float>(head.head);
  for (int64_t m = 0; m < rows; ++m) {
    float* p1 = maps.p1.data() + m * columns;
    float* p2 = head.differential ? maps.p2.data() + m * columns : nullptr;
    const auto [begin, end] = visible(sequence, m);
    for (int64_t n = begin; n < end; ++n) {
      const auto distance = static_cast<float>(std::abs(m - n));
      const float common = 0.30f * dot(q, m, k, n) + 0.7f * tilt[static_cast<size_t>(n)] +
                           (n == begin ? 2.2f : 0.0f) + local * std::exp(-distance / 4);
      const bool asked = answer != nullptr && n >= answer->begin && n < answer->end;
      p1[n] = common + (asked && m >= rows * 3 / 4 ? 3.4f : 0.0f);
      if (p2 != nullptr) p2[n] = common + 0.12f * dot(q, m, k2, n) - (asked ? 0.5f : 0.0f);
    }
    softmax(p1, begin, end);
    if (p2 != nullptr) softmax(p2, begin, end);
  }
  if (!head.differential) return maps;
  const auto base = static_cast<float>(lambda_init(head.layer));
  const std::vector<float> shift = normal(random, rows);
  maps.lambda.assign(head.token_lambda ? static_cast<size_t>(rows) : 1, base);
  for (size_t i = 0; i < maps.lambda.size(); ++i) {
    maps.lambda[i] =
        head.token_lambda ? 1 / (1 + std::exp(-shift[i] * 0.7f)) : base + 0.04f * shift[0];
  }
  return maps;
}

std::vector<double> statistics_of(const HeadMaps& maps, const Sequence& sequence) {
  const int64_t rows = sequence.row_count();
  const int64_t columns = sequence.column_count();
  const bool plain = maps.p2.empty();
  double entries = 0, sparse = 0, focus = 0, absolute = 0, negative = 0, entropy = 0, sink = 0;
  double most = 0, cancelled = 0, lambdas = 0, similar = 0;
  for (int64_t m = 0; m < rows; ++m) {
    const auto [begin, end] = visible(sequence, m);
    const auto row = static_cast<size_t>(maps.lambda.size() == 1 ? 0 : m);
    const double lambda = plain ? 0 : maps.lambda[row];
    double sum = 0, weighted = 0, largest = -1;
    for (int64_t n = begin; n < end; ++n) {
      const auto at = static_cast<size_t>(m * columns + n);
      const double p1 = maps.p1[at];
      const double p2 = plain ? 0 : maps.p2[at];
      const double a = p1 - lambda * p2;
      if (n == begin) sink += a;
      sum += std::fabs(a);
      if (a != 0) weighted += std::fabs(a) * std::log(std::fabs(a));
      sparse += std::fabs(a) < 1e-3;
      focus += std::fabs(a) > 0.5;
      negative += std::max(-a, 0.0);
      largest = std::max(largest, a);
      cancelled += std::min(p1, std::max(0.0, lambda * p2));
      similar += std::min(p1, p2);
    }
    entries += static_cast<double>(end - begin);
    entropy += sum > 0 ? std::log(sum) - weighted / sum : 0;
    absolute += sum;
    most += largest;
    lambdas += lambda;
  }
  const double none = std::nan("");
  const auto count = static_cast<double>(rows);
  return {sparse / entries,
          focus / entries,
          absolute / entries,
          negative / count,
          entropy / count,
          sink / count,
          most / count,
          plain ? none : cancelled / count,
          plain ? none : lambdas / count,
          plain ? none : similar / count};
}

Sequence numbered_sequence(int64_t tokens) {
  Sequence out;
  out.name = std::to_string(tokens) + " tokens";
  for (int64_t i = 0; i < tokens; ++i) {
    out.rows.push_back("w" + std::to_string(i));
    out.visible_begin.push_back(0);
    out.visible_end.push_back(i + 1);
  }
  out.regions.push_back(
      {"answer", "answer", tokens / 3, tokens / 3 + std::max<int64_t>(1, tokens / 64)});
  return out;
}

Sequence needle_sequence() {
  const std::string text =
      "<s> The| grass| is| green| .| The| magic| number| of| Oslo| is| 4 8 2 1| .| It| rained| "
      "all| "
      "week| and| nobody| minded| .| The| magic| number| of| Lima| is| 7 0 3 9| .| Trains| were| "
      "late| again| .| The| magic| number| of| Kyoto| is| 5 5 6 4| .| What| is| the| magic| "
      "number| "
      "of| Lima| ?| It| is| 7 0 3 9|";
  Sequence out;
  out.name = "three needles";
  // "|" ends a token that keeps its leading space; single spaces separate digits and the start.
  std::string token;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '|') {
      out.rows.push_back(token);
      token.clear();
    } else if (text[i] == ' ' && !token.empty() && token != " ") {
      out.rows.push_back(token);
      token = std::isdigit(static_cast<unsigned char>(text[i + 1])) ? "" : " ";
    } else {
      token += text[i];
    }
  }
  for (int64_t m = 0; m < out.row_count(); ++m) {
    out.visible_begin.push_back(0);
    out.visible_end.push_back(m + 1);
  }
  const auto find = [&](const std::string& name, int64_t from) {
    return std::find(out.rows.begin() + from, out.rows.end(), name) - out.rows.begin();
  };
  const int64_t oslo = find(" Oslo", 0), lima = find(" Lima", 0), kyoto = find(" Kyoto", 0);
  out.regions = {{"answer: 7039", "answer", lima + 2, lima + 6},
                 {"other needles", "noise", oslo + 2, oslo + 6},
                 {"other needles", "noise", kyoto + 2, kyoto + 6}};
  return out;
}

std::vector<std::string> hostile_tokens() {
  using namespace std::string_literals;
  return {"<script>alert(1)</script>",
          "</script><script>alert(2)</script>",
          "<img src=x onerror=alert(3)>",
          "<!--",
          "-->",
          "]]>",
          "<svg/onload=alert(4)>",
          "&lt;b&gt;",
          "&#x3c;i&#x3e;",
          "\"><b>bold</b>",
          "' onmouseover='alert(5)",
          "javascript:alert(6)",
          "{{7*7}}",
          "${alert(8)}",
          "`backtick`",
          "\\u003cscript\\u003e",
          "\xe2\x80\xa8line\xe2\x80\xa9paragraph",
          "nul\0inside"s,
          "\x1b[31mred\x1b[0m",
          "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
          "\xe2\x80\xaereversed\xe2\x80\xac",
          "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac",
          "\xef\xbb\xbf"
          "bom",
          "\xff\xfe broken",
          "\xed\xa0\x80 surrogate",
          "a\tb\r\nc",
          "   ",
          "",
          "</style><style>*{display:none}</style>",
          "<a href=https://example.com/x>link</a>"};
}

}  // namespace diffattn::analysis::testing
