// SPDX-License-Identifier: Apache-2.0
//
// Forward in float64. Tasks are blocks of kBlockRows query rows of one noise head; each computes
// map 2 over all keys that its rows see, then map 1 and O = (p1 - lambda p2) v in one product for
// each head that shares it. Kv heads are packed in waves, so that packed copies exist for a few
// heads at a time.

#include <algorithm>
#include <vector>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cpu.h"
#include "diffattn/kernels/reference.h"
#include "kernels/cpu/float64/waves.h"
#include "kernels/gather_pages.h"
#include "kernels/reference/epilogue.h"

namespace diffattn::cpu::float64 {
namespace {

class Forward {
 public:
  explicit Forward(const ForwardParams& params)
      : params_(params), epilogue_(params.epilogue, params.value_dim) {}

  void run() const {
    const Waves waves(params_, params_.v, /*backward=*/false);
    const int64_t share = params_.noise_group();
    const int64_t group = params_.heads / share / std::max<int64_t>(1, params_.kv_heads);
    const int64_t blocks = (params_.seq_q + kBlockRows - 1) / kBlockRows;
    const int64_t width = padded(params_.value_dim);
    waves.run(
        group * blocks, scratch_bytes(),
        [&](const PackedHead& head, int64_t, int64_t task, char* memory) {
          // The last block of rows first: under a causal mask it sees the most keys.
          const int64_t m = (blocks - 1 - task / group) * kBlockRows;
          if (m >= head.seq.seq_q) return;
          Carver<double> carver{memory, 0};
          RowBlock block(params_, most_panels(params_), false, carver);
          double* o = carver.take<double>(kBlockRows * width);
          const int64_t first = (head.kv_head * group + task % group) * share;
          for (int64_t h = first; h < first + share; ++h) run_block(head, h, m, block, o);
        },
        [](const std::vector<PackedHead>&) {});
  }

 private:
  int64_t scratch_bytes() const {
    Carver<double> carver;
    const RowBlock block(params_, most_panels(params_), false, carver);
    carver.take<double>(kBlockRows * padded(params_.value_dim));
    return carver.used;
  }

  void run_block(const PackedHead& head, int64_t h, int64_t m, RowBlock& block, double* o) const {
    block.compute(head, h, m);
    const int64_t width = padded(params_.value_dim);
    subtract_maps(block.panels, block.p[0], block.p[1], block.lambda, block.third);
    block.fill_hidden(block.third, 0.0);           // lambda may be NaN
    multiply_values(head, block, block.third, o);  // (4)
    for (int i = 0; i < block.count; ++i) {
      const int64_t row = head.seq.q_begin + m + i;
      store(params_.o, head.b, row, h, o + i * width);
      for (int map = 0; map < 2; ++map) {
        const View<void>& lse = map == 0 ? params_.lse1 : params_.lse2;
        if (lse) *lse.as<double>().at(head.b, row, h) = block.lse[map][i];
      }
      if (block.sees_any[i]) {
        epilogue_.apply({o + i * width, static_cast<size_t>(params_.value_dim)});  // (5)
      }
      store(params_.out, head.b, row, h, o + i * width);
    }
    if (!params_.o2) return;
    multiply_values(head, block, block.p[1], o);
    for (int i = 0; i < block.count; ++i) {
      store(params_.o2, head.b, head.seq.q_begin + m + i, h, o + i * width);
    }
  }

  /// Computes o = map v.
  void multiply_values(const PackedHead& head, const RowBlock& block, const double* map,
                       double* o) const {
    std::fill_n(o, kBlockRows * padded(params_.value_dim), 0.0);
    add_row_sums(block.panels, map, head.v, padded(params_.value_dim), o);
    block.add_odd_keys(head, map, head.odd_v, params_.v, params_.value_dim, o);
  }

  void store(const View<void>& view, int64_t b, int64_t row, int64_t h, const double* from) const {
    if (view) std::copy_n(from, params_.value_dim, view.as<double>().at(b, row, h));
  }

  const ForwardParams& params_;
  const reference::HeadEpilogue<double> epilogue_;
};

}  // namespace

bool available() { return true; }
bool takes(const Problem& problem) { return problem.dtype == Dtype::kFloat64; }

void forward(const ForwardParams& params) {
  validate(params, /*host_arrays=*/true);
  if (params.pages.table != nullptr) return forward(GatheredPages(params).params());
  Forward(params).run();
}

void stats(const StatsParams& params) { reference::stats(params); }
void stats_backward(const StatsBackwardParams& params) { reference::stats_backward(params); }
void map(const MapParams& params) { reference::map(params); }

}  // namespace diffattn::cpu::float64
