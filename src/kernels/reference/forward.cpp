// SPDX-License-Identifier: Apache-2.0
//
// Forward as in docs/algorithm.md. For each batch entry b, head h and row m:
//
//   (1) s1[n] = scale q1[m].k1[n] + mask,   s2[n] = scale2 q2[m].k2[n] + mask   for visible n
//   (2) p1 = softmax(s1), lse1              (3) p2 = softmax(s2), lse2
//   (4) O  = sum_n (p1[n] - lambda p2[n]) v[n]
//   (5) out = out_scale * weight * O * rstd(O)
//
// One row at a time: s1, s2, p1, p2 are [N], O is [Dv]. All sums are in double; results are rounded
// once, when they are stored.

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/reference.h"
#include "kernels/gather_pages.h"
#include "kernels/reference/epilogue.h"
#include "kernels/reference/maps.h"

namespace diffattn::reference {
namespace {

template <class T>
struct Forward {
  const ForwardParams& params;
  const HeadEpilogue<T> epilogue{params.epilogue, params.value_dim};

  void run() {
    for (int64_t b = 0; b < params.batch; ++b) {
      for (int64_t h = 0; h < params.heads; ++h) run_head(b, h);
    }
  }

  void run_head(int64_t b, int64_t h) {
    HeadMaps<T> maps(params, b, h);
    const int64_t g = h / (params.heads / params.kv_heads);
    const std::vector<double> v = load_rows<T>(params.v, b, maps.seq.k_begin, maps.seq.seq_k, g,
                                               params.value_dim);  // [N, Dv]
    for (int64_t m = 0; m < maps.seq.seq_q; ++m) {
      maps.compute_row(m);  // (1) (2) (3)
      store(maps, v, b, maps.seq.q_begin + m, h);
    }
  }

  void store(const HeadMaps<T>& maps, const std::vector<double>& v, int64_t b, int64_t row,
             int64_t h) {
    const int64_t width = params.value_dim;
    std::vector<double> o(width, 0.0), o2(width, 0.0);
    for (int64_t n = maps.columns.begin; n < maps.columns.end; ++n) {
      if (!maps.visible[n]) continue;  // a NaN in a hidden row of v must not reach O
      add_scaled(o.data(), maps.difference(n), v.data() + n * width, width);  // (4)
      add_scaled(o2.data(), maps.p2[n], v.data() + n * width, width);
    }
    if (params.o) store_row<T>(params.o, b, row, h, o.data(), width);
    if (params.o2) store_row<T>(params.o2, b, row, h, o2.data(), width);
    if (params.lse1) store_row<Accumulator<T>>(params.lse1, b, row, h, &maps.lse1, 1);
    if (params.lse2) store_row<Accumulator<T>>(params.lse2, b, row, h, &maps.lse2, 1);
    if (maps.visible_count != 0) epilogue.apply(o);  // (5); a row that sees no column stays 0
    store_row<T>(params.out, b, row, h, o.data(), width);
  }
};

}  // namespace

void forward(const ForwardParams& params) {
  validate(params, /*host_arrays=*/true);
  if (params.pages.table != nullptr) return forward(GatheredPages(params).params());
  with_dtype(params.dtype, [&]<class T>() { Forward<T>{params}.run(); });
}

}  // namespace diffattn::reference
