// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/float64/block.h"

#include <algorithm>
#include <limits>

namespace diffattn::cpu::float64 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr uint8_t kAllLanes = 0xff;

/// Copies one panel of rows to `rows` [keys][padded(width)] and, transposed, to `columns`
/// [panels][width][kLanes]; either may be null. Returns a bit per odd row, which is 0 in `rows`.
uint8_t pack_rows(const View<const double>& x, const PackedHead& head, int64_t width, int64_t panel,
                  double* rows, double* columns) {
  uint8_t odd = 0;
  for (int w = 0; w < kLanes; ++w) {
    const int64_t n = panel * kLanes + w;
    const bool inside = n < head.seq.seq_k;
    const double* from = inside ? x.at(head.b, head.seq.k_begin + n, head.kv_head) : nullptr;
    const bool finite = !inside || all_finite(from, width);
    if (!finite) odd |= static_cast<uint8_t>(1 << w);
    if (rows != nullptr) {
      double* to = rows + n * padded(width);
      std::fill_n(to, padded(width), 0.0);
      if (inside && finite) std::copy_n(from, width, to);
    }
    for (int64_t c = 0; columns != nullptr && c < width; ++c) {
      columns[(panel * width + c) * kLanes + w] = inside ? from[c] : 0.0;
    }
  }
  return odd;
}

}  // namespace

PackedHead place_head(const Problem& problem, int64_t b, int64_t kv_head, bool backward,
                      Carver<double>& carver) {
  PackedHead head{.b = b, .kv_head = kv_head, .seq = sequence_of(problem, b)};
  head.panels = padded(head.seq.seq_k) / kLanes;
  const int64_t keys = head.panels * kLanes;
  for (int m = 0; m < 2; ++m) {
    head.kt[m] = carver.take<double>(keys * problem.head_dim);
    head.k[m] = backward ? carver.take<double>(keys * padded(problem.head_dim)) : nullptr;
    head.odd_k[m] = carver.take<uint8_t>(head.panels);
  }
  head.v = carver.take<double>(keys * padded(problem.value_dim));
  head.vt = backward ? carver.take<double>(keys * problem.value_dim) : nullptr;
  head.odd_v = carver.take<uint8_t>(head.panels);
  return head;
}

void pack_panel(const Problem& problem, const View<const void>& v, const PackedHead& head,
                int64_t panel) {
  head.odd_v[panel] =
      pack_rows(v.as<const double>(), head, problem.value_dim, panel, head.v, head.vt);
  for (int m = 0; m < 2; ++m) {
    const auto k = (m == 0 ? problem.k1 : problem.k2).as<const double>();
    head.odd_k[m][panel] = pack_rows(k, head, problem.head_dim, panel, head.k[m], head.kt[m]);
  }
}

void pack_strips(const double* const* x, int count, int64_t width, double* strips) {
  for (int i = 0; i < kBlockRows; ++i) {
    double* to = strips + i / kStrip * width * kStrip + i % kStrip;
    for (int64_t c = 0; c < width; ++c) to[c * kStrip] = i < count ? x[i][c] : 0.0;
  }
}

RowBlock::RowBlock(const Problem& problem, int64_t most_panels, bool backward,
                   Carver<double>& carver)
    : problem(problem) {
  const int64_t map = most_panels * kBlockRows * kLanes;
  for (int m = 0; m < 2; ++m) {
    q[m] = carver.take<double>(kBlockRows * problem.head_dim);
    q_rows[m] = carver.take<double>(backward ? kBlockRows * padded(problem.head_dim) : 0);
    p[m] = carver.take<double>(map);
  }
  third = carver.take<double>(map);
  seen = carver.take<uint8_t>(most_panels * kBlockRows);
  has_hidden = carver.take<uint8_t>(most_panels);
}

void RowBlock::compute(const PackedHead& head, int64_t h, int64_t m) {
  count = static_cast<int>(std::min<int64_t>(kBlockRows, head.seq.seq_q - m));
  fresh = h % problem.noise_group() == 0 ? 2 : 1;
  for (int i = 0; i < kBlockRows; ++i) {
    const int64_t row = head.seq.q_begin + m + i;
    lambda[i] = i < count ? *problem.lambda.as<const double>().at(head.b, row, h) : 0.0;
  }
  pack_queries(head, h, m);
  find_visible(head, h, m);
  const double scale[2] = {problem.scale, problem.scale2};
  for (int map = 0; map < fresh; ++map) {
    multiply_panels(panels, q[map], head.kt[map], problem.head_dim, scale[map], p[map]);  // (1)
  }
  if (problem.mask.kind == MaskKind::kAdditive) add_biases(head, h, m);
  for (int map = 0; map < fresh; ++map) {  // (2) (3)
    fill_hidden(p[map], -kInfinity);
    for (int i = 0; i < kBlockRows; ++i) {
      const double sum = softmax_row(panels, i, p[map]);
      lse[map][i] = sees_any[i] ? sum : -kInfinity;
    }
    fill_hidden(p[map], 0.0);  // a row whose sum is 0 or NaN made them NaN
  }
}

void RowBlock::pack_queries(const PackedHead& head, int64_t h, int64_t m) {
  const int64_t width = problem.head_dim;
  for (int map = 0; map < fresh; ++map) {
    const auto view = (map == 0 ? problem.q1 : problem.q2).as<const double>();
    const int64_t query = map == 0 ? h : h / problem.noise_group();
    const double* rows[kBlockRows];
    for (int i = 0; i < count; ++i) rows[i] = view.at(head.b, head.seq.q_begin + m + i, query);
    pack_strips(rows, count, width, q[map]);
    if (head.vt == nullptr) continue;  // only the backward reads q by rows
    odd_q[map] = 0;
    std::fill_n(q_rows[map], kBlockRows * padded(width), 0.0);
    for (int i = 0; i < count; ++i) {
      if (all_finite(rows[i], width)) {
        std::copy_n(rows[i], width, q_rows[map] + i * padded(width));
      } else {
        odd_q[map] |= 1u << i;
      }
    }
  }
}

void RowBlock::find_visible(const PackedHead& head, int64_t h, int64_t m) {
  Columns columns[kBlockRows] = {};
  int64_t begin = head.seq.seq_k, end = 0;
  for (int i = 0; i < count; ++i) {
    columns[i] = columns_of(problem, head.seq, m + i);
    if (columns[i].begin == columns[i].end) continue;
    begin = std::min(begin, columns[i].begin);
    end = std::max(end, columns[i].end);
  }
  panels = begin < end ? PanelRange{begin / kLanes, padded(end) / kLanes} : PanelRange{0, 0};
  std::fill_n(sees_any, kBlockRows, false);
  for (int64_t panel = panels.first; panel < panels.end; ++panel) {
    has_hidden[panel] = 0;
    for (int i = 0; i < kBlockRows; ++i) {
      uint8_t bits = 0;
      const int64_t first = std::max(columns[i].begin, panel * kLanes);
      const int64_t last = std::min(columns[i].end, (panel + 1) * kLanes);
      if (problem.mask.kind == MaskKind::kNone && last - first == kLanes) {
        bits = kAllLanes;
      } else {
        for (int64_t n = first; n < last; ++n) {
          const bool visible = mask_entry(problem.mask, head.b, h, m + i, n).visible;
          bits |= static_cast<uint8_t>(visible << (n % kLanes));
        }
      }
      seen[panel * kBlockRows + i] = bits;
      sees_any[i] |= bits != 0;
      has_hidden[panel] |= bits != kAllLanes;
    }
  }
}

void RowBlock::add_biases(const PackedHead& head, int64_t h, int64_t m) {
  for (int64_t panel = panels.first; panel < panels.end; ++panel) {
    for (int i = 0; i < count; ++i) {
      const int64_t entry = panel * kBlockRows + i;
      for (int w = 0; w < kLanes; ++w) {
        if ((seen[entry] >> w & 1) == 0) continue;
        const double bias = mask_entry(problem.mask, head.b, h, m + i, panel * kLanes + w).bias;
        for (int map = 0; map < fresh; ++map) p[map][entry * kLanes + w] += bias;
      }
    }
  }
}

void RowBlock::fill_hidden(double* map, double value) const {
  for (int64_t panel = panels.first; panel < panels.end; ++panel) {
    if (has_hidden[panel] == 0) continue;
    for (int64_t entry = panel * kBlockRows; entry < (panel + 1) * kBlockRows; ++entry) {
      for (int w = 0; w < kLanes; ++w) {
        if ((seen[entry] >> w & 1) == 0) map[entry * kLanes + w] = value;
      }
    }
  }
}

void RowBlock::add_odd_keys(const PackedHead& head, const double* map, const uint8_t* odd,
                            const View<const void>& x, int64_t width, double* sums) const {
  for (int64_t panel = panels.first; panel < panels.end; ++panel) {
    for (int w = 0; odd[panel] != 0 && w < kLanes; ++w) {
      if ((odd[panel] >> w & 1) == 0) continue;
      const double* row =
          x.as<const double>().at(head.b, head.seq.k_begin + panel * kLanes + w, head.kv_head);
      for (int i = 0; i < count; ++i) {
        const int64_t entry = panel * kBlockRows + i;
        if ((seen[entry] >> w & 1) == 0) continue;
        for (int64_t c = 0; c < width; ++c) {
          sums[i * padded(width) + c] += map[entry * kLanes + w] * row[c];
        }
      }
    }
  }
}

void RowBlock::add_odd_rows(const double* map, uint32_t odd, const double* const* x, int64_t width,
                            double* sums) const {
  for (int i = 0; odd != 0 && i < count; ++i) {
    if ((odd >> i & 1) == 0) continue;
    for (int64_t n = panels.first * kLanes; n < panels.end * kLanes; ++n) {
      const int64_t entry = n / kLanes * kBlockRows + i;
      if ((seen[entry] >> n % kLanes & 1) == 0) continue;
      for (int64_t c = 0; c < width; ++c) {
        sums[n * padded(width) + c] += map[entry * kLanes + n % kLanes] * x[i][c];
      }
    }
  }
}

}  // namespace diffattn::cpu::float64
