// SPDX-License-Identifier: Apache-2.0
//
// Backward as in docs/algorithm.md. Each row m of each head recomputes p1, p2 [N] and O [Dv] by
// steps (1)-(4) of the forward, then:
//
//   (6) dO = epilogue backward of dout;   dweight += out_scale * dout * O * rstd
//   (7) dA[n] = dO.v[n];  dv[n] += A[n] dO;  dp1 = dA,  dp2 = -lambda dA,  dlambda = -sum dA p2
//   (8) (9) ds, dq, dk, dmask: input_gradients.h
//
// All sums are in double; each gradient is rounded once, when it is stored. This backward does not
// read the saved lse, o and o2, so it can check the backends that do.

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/reference.h"
#include "kernels/reference/epilogue.h"
#include "kernels/reference/input_gradients.h"

namespace diffattn::reference {
namespace {

template <class T>
struct Backward {
  const BackwardParams& params;
  const HeadEpilogue<T> epilogue{params.epilogue, params.value_dim};
  InputGradients<T> inputs{params, params};
  std::vector<double> v{}, dv{};  // [N, Dv] of one kv head
  /// [Dv]: dnorm_weight / out_scale
  std::vector<double> dweight = std::vector<double>(params.value_dim, 0.0);

  void run() {
    for (int64_t b = 0; b < params.batch; ++b) {
      for (int64_t g = 0; g < params.kv_heads; ++g) run_kv_head(b, g);
    }
    inputs.finish();
    if (params.dnorm_weight != nullptr) {
      for (double& x : dweight) x *= params.epilogue.out_scale;
      store_row<Accumulator<T>>({params.dnorm_weight}, 0, 0, 0, dweight.data(), params.value_dim);
    }
  }

  void run_kv_head(int64_t b, int64_t g) {
    const Sequence seq = sequence_of(params, b);
    const int64_t group = params.heads / params.kv_heads;
    v = load_rows<T>(params.v, b, seq.k_begin, seq.seq_k, g, params.value_dim);
    dv.assign(v.size(), 0.0);
    inputs.begin_kv_head(b);
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      HeadMaps<T> maps(params, b, h);
      for (int64_t m = 0; m < seq.seq_q; ++m) {
        maps.compute_row(m);  // (1) (2) (3)
        run_row(maps, b, h, m);
      }
    }
    inputs.end_kv_head(b, g);
    if (!params.dv) return;
    for (int64_t n = 0; n < seq.seq_k; ++n) {
      store_row<T>(params.dv, b, seq.k_begin + n, g, dv.data() + n * params.value_dim,
                   params.value_dim);
    }
  }

  void run_row(const HeadMaps<T>& maps, int64_t b, int64_t h, int64_t m) {
    const int64_t width = params.value_dim;
    std::vector<double> o(width, 0.0);
    for (int64_t n = maps.columns.begin; n < maps.columns.end; ++n) {
      if (maps.visible[n])
        add_scaled(o.data(), maps.difference(n), v.data() + n * width, width);  // (4)
    }
    std::vector<double> dout =
        load_rows<T>(params.dout, b, maps.seq.q_begin + m, 1, h, width);  // (6) makes it dO
    if (maps.visible_count != 0) epilogue.apply_backward(o, dout, dweight);

    std::vector<double> dp1(maps.seq.seq_k), dp2(maps.seq.seq_k);
    double dlambda = 0.0;
    for (int64_t n = maps.columns.begin; n < maps.columns.end; ++n) {  // (7)
      if (!maps.visible[n]) continue;
      const double da = dot(dout.data(), v.data() + n * width, width);
      add_scaled(dv.data() + n * width, maps.difference(n), dout.data(), width);
      dp1[n] = da;
      dp2[n] = -maps.lambda * da;
      dlambda -= da * maps.p2[n];
    }
    inputs.add_row(maps, b, h, m, dp1, dp2, dlambda);  // (8) (9)
  }
};

}  // namespace

void backward(const BackwardParams& params) {
  validate(params, /*host_arrays=*/true);
  with_dtype(params.dtype, [&]<class T>() { Backward<T>{params}.run(); });
}

}  // namespace diffattn::reference
