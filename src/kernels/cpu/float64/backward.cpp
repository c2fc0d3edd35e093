// SPDX-License-Identifier: Apache-2.0
//
// Backward in float64, by blocks of query rows over all keys that they see:
//
//   (1)-(4) p1, p2, and O if the epilogue needs it
//   (6) dO = epilogue backward of dout
//   (7) dA = dO v^T;  dv += A^T dO;  dlambda = -sum dA p2
//   (8) ds = p (dp - sum p dp)        (9) dq = ds k,  dk += ds^T q
//
// Heads that share map 2 run one after the other and sum their dp2; the last computes ds2.
//
// The blocks of a kv head are dealt to slabs: private sums of dk and dv. Their number depends on
// the sizes of one sequence alone, so the sums have the same bits for any number of threads.

#include <algorithm>
#include <vector>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cpu.h"
#include "kernels/cpu/float64/waves.h"
#include "kernels/reference/epilogue.h"

namespace diffattn::cpu::float64 {
namespace {

constexpr int64_t kMostSlabs = 8;
constexpr int64_t kSlabBytes = int64_t{64} << 20;  // of all slabs of a kv head

/// The sums of one slab.
struct Slab {
  double* dk[2];    // [keys][padded(D)]
  double* dv;       // [keys][padded(Dv)]
  double* dweight;  // [Dv]: dnorm_weight / out_scale
};

/// The scratch memory of a task.
struct Scratch {
  RowBlock block;
  double* o;           // [kBlockRows][padded(Dv)]
  double* d_o;         // [kBlockRows][padded(Dv)]
  double* d_rows;      // dO with zeros instead of odd rows (PackedHead)
  double* d_strips;    // dO, packed
  double* dq;          // [kBlockRows][padded(D)]
  double* shared;      // like a map: sum of lambda dA over the heads that share map 2
  uint32_t odd_d = 0;  // a bit per odd row of dO

  Scratch(const Problem& problem, Carver<double>& carver)
      : block(problem, most_panels(problem), true, carver) {
    o = carver.take<double>(kBlockRows * padded(problem.value_dim));
    d_o = carver.take<double>(kBlockRows * padded(problem.value_dim));
    d_rows = carver.take<double>(kBlockRows * padded(problem.value_dim));
    d_strips = carver.take<double>(kBlockRows * problem.value_dim);
    dq = carver.take<double>(kBlockRows * padded(problem.head_dim));
    const int64_t map = most_panels(problem) * kBlockRows * kLanes;
    shared = carver.take<double>(problem.noise_group() > 1 ? map : 0);
  }
};

class Backward {
 public:
  explicit Backward(const BackwardParams& params)
      : params_(params), epilogue_(params.epilogue, params.value_dim) {
    const int64_t heads = params.batch * params.kv_heads;
    dweight_.resize(static_cast<size_t>(heads * slabs_ * params.value_dim), 0.0);
    dlambda_.resize(static_cast<size_t>(params.batch * params.seq_q * params.heads), 0.0);
  }

  void run() {
    const Waves waves(params_, params_.v, /*backward=*/true, shares_dmask());
    const int64_t bytes = waves.heads_at_once(slabs_) * slabs_ * slab_doubles_ * sizeof(double);
    auto* const memory = reinterpret_cast<double*>(CallMemory::take(CallMemory::kSlabs, bytes));
    Carver<double> carver;
    const Scratch sizes(params_, carver);
    zero_dmask();
    waves.run(
        slabs_, carver.used,
        [&](const PackedHead& head, int64_t i, int64_t slab, char* scratch) {
          run_slab(head, slab, memory + (i * slabs_ + slab) * slab_doubles_, scratch);
        },
        [&](const std::vector<PackedHead>& heads) { store_key_gradients(heads, memory); });
    store_dlambda();
    store_dnorm_weight();
  }

 private:
  void run_slab(const PackedHead& head, int64_t slab, double* sums, char* memory) {
    std::fill_n(sums, slab_doubles_, 0.0);
    const int64_t number = (head.b * params_.kv_heads + head.kv_head) * slabs_ + slab;
    const Slab to = slab_at(sums, dweight_.data() + number * params_.value_dim);
    Carver<double> carver{memory, 0};
    Scratch scratch(params_, carver);
    for (int64_t i = slab; i < group_ * blocks_; i += slabs_) {
      const int64_t m = i / group_ * kBlockRows;
      if (m >= head.seq.seq_q) break;
      const int64_t first = (head.kv_head * group_ + i % group_) * share_;
      for (int64_t h = first; h < first + share_; ++h) run_block(head, h, m, scratch, to);
    }
  }

  Slab slab_at(double* sums, double* dweight) const {
    const int64_t width = padded(params_.head_dim);
    return {{sums, sums + keys_ * width}, sums + 2 * keys_ * width, dweight};
  }

  void run_block(const PackedHead& head, int64_t h, int64_t m, Scratch& scratch, const Slab& to) {
    RowBlock& block = scratch.block;
    const int64_t width = padded(params_.value_dim);
    block.compute(head, h, m);  // (1) (2) (3)
    std::fill_n(scratch.o, kBlockRows * width, 0.0);
    if (needs_output_) {  // (4)
      subtract_maps(block.panels, block.p[0], block.p[1], block.lambda, block.third);
      block.fill_hidden(block.third, 0.0);  // lambda may be NaN
      add_row_sums(block.panels, block.third, head.v, width, scratch.o);
      block.add_odd_keys(head, block.third, head.odd_v, params_.v, params_.value_dim, scratch.o);
    }
    load_output_gradient(head, h, m, scratch, to.dweight);  // (6)
    multiply_panels(block.panels, scratch.d_strips, head.vt, params_.value_dim, 1.0, block.third);
    block.fill_hidden(block.third, 0.0);  // v may be NaN there
    const bool last = (h + 1) % share_ == 0;
    for (int i = 0; i < kBlockRows; ++i) {  // (7) (8)
      const double sum = differentiate(block, i, scratch.shared, last);
      if (i >= block.count) continue;
      dlambda_[static_cast<size_t>((head.b * params_.seq_q + m + i) * params_.heads + h)] =
          block.sees_any[i] ? -sum : 0.0;
    }
    const int maps = last ? 2 : 1;  // whose ds is known
    for (int map = 0; map < maps; ++map) block.fill_hidden(block.p[map], 0.0);
    block.fill_hidden(block.third, 0.0);
    add_key_sums(block.panels, block.third, scratch.d_rows, width, to.dv);
    const double* rows[kBlockRows];
    for (int i = 0; i < kBlockRows; ++i) rows[i] = scratch.d_o + i * width;
    block.add_odd_rows(block.third, scratch.odd_d, rows, params_.value_dim, to.dv);
    for (int map = 0; map < maps; ++map) add_input_gradients(head, h, m, map, scratch, to);  // (9)
    add_dmask(head, h, m, maps, block);
  }

  /// Step (8) for row i. Returns sum p2 dA.
  double differentiate(RowBlock& block, int i, double* shared, bool last) const {
    double *p1 = block.p[0], *p2 = block.p[1], *da = block.third;
    if (share_ == 1) return differentiate_row(block.panels, i, block.lambda[i], p1, p2, da);
    const double sum = differentiate_shared_row(block.panels, i, block.lambda[i], block.fresh == 2,
                                                p1, p2, da, shared);
    if (last) differentiate_noise_row(block.panels, i, p2, shared);
    return sum;
  }

  /// Loads dout and turns it into dO.
  void load_output_gradient(const PackedHead& head, int64_t h, int64_t m, Scratch& scratch,
                            double* dweight) const {
    const RowBlock& block = scratch.block;
    const int64_t width = padded(params_.value_dim);
    const auto size = static_cast<size_t>(params_.value_dim);
    std::fill_n(scratch.d_rows, kBlockRows * width, 0.0);
    scratch.odd_d = 0;
    const double* rows[kBlockRows];
    for (int i = 0; i < block.count; ++i) {
      double* d_o = scratch.d_o + i * width;
      rows[i] = d_o;
      std::copy_n(params_.dout.as<const double>().at(head.b, head.seq.q_begin + m + i, h),
                  params_.value_dim, d_o);
      if (block.sees_any[i]) {
        epilogue_.apply_backward({scratch.o + i * width, size}, {d_o, size}, {dweight, size});
      }
      if (all_finite(d_o, params_.value_dim)) {
        std::copy_n(d_o, params_.value_dim, scratch.d_rows + i * width);
      } else {
        scratch.odd_d |= 1u << i;
      }
    }
    pack_strips(rows, block.count, params_.value_dim, scratch.d_strips);
  }

  void add_input_gradients(const PackedHead& head, int64_t h, int64_t m, int map, Scratch& scratch,
                           const Slab& to) const {
    const RowBlock& block = scratch.block;
    const int64_t width = padded(params_.head_dim);
    add_key_sums(block.panels, block.p[map], block.q_rows[map], width, to.dk[map]);
    const View<const double> q = (map == 0 ? params_.q1 : params_.q2).as<const double>();
    const int64_t query = map == 0 ? h : h / share_;
    const double* rows[kBlockRows];
    for (int i = 0; i < block.count; ++i) rows[i] = q.at(head.b, head.seq.q_begin + m + i, query);
    block.add_odd_rows(block.p[map], block.odd_q[map], rows, params_.head_dim, to.dk[map]);

    const View<void>& dq = map == 0 ? params_.dq1 : params_.dq2;
    if (!dq) return;
    std::fill_n(scratch.dq, kBlockRows * width, 0.0);
    add_row_sums(block.panels, block.p[map], head.k[map], width, scratch.dq);
    block.add_odd_keys(head, block.p[map], head.odd_k[map], map == 0 ? params_.k1 : params_.k2,
                       params_.head_dim, scratch.dq);
    for (int i = 0; i < block.count; ++i) {
      double* out = dq.as<double>().at(head.b, head.seq.q_begin + m + i, query);
      for (int64_t c = 0; c < params_.head_dim; ++c) {
        out[c] = scratch.dq[i * width + c] * scale_[map];
      }
    }
  }

  /// True if several batch entries, heads or rows add to one element of dmask.
  bool shares_dmask() const {
    const MaskStrides& stride = params_.dmask_strides;
    return params_.dmask != nullptr && (stride.batch == 0 || stride.head == 0 || stride.row == 0);
  }

  void zero_dmask() const {
    if (params_.dmask == nullptr) return;
    const MaskStrides& stride = params_.dmask_strides;
    const auto size = [](int64_t count, int64_t step) { return step == 0 ? 1 : count; };
    std::fill_n(static_cast<double*>(params_.dmask),
                size(params_.batch, stride.batch) * size(params_.heads, stride.head) *
                    size(params_.seq_q, stride.row) * size(params_.seq_k, stride.column),
                0.0);
  }

  /// Adds ds of the first `maps` maps.
  void add_dmask(const PackedHead& head, int64_t h, int64_t m, int maps,
                 const RowBlock& block) const {
    if (params_.dmask == nullptr) return;
    const MaskStrides& stride = params_.dmask_strides;
    for (int i = 0; i < block.count; ++i) {
      double* out = static_cast<double*>(params_.dmask) + head.b * stride.batch + h * stride.head +
                    (m + i) * stride.row;
      for (int64_t n = block.panels.first * kLanes; n < block.panels.end * kLanes; ++n) {
        const int64_t entry = n / kLanes * kBlockRows + i;
        if ((block.seen[entry] >> n % kLanes & 1) == 0) continue;
        const int64_t at = entry * kLanes + n % kLanes;
        out[n * stride.column] += maps == 2 ? block.p[0][at] + block.p[1][at] : block.p[0][at];
      }
    }
  }

  /// Adds the slabs of each kv head, in order.
  void store_key_gradients(const std::vector<PackedHead>& heads, double* memory) const {
    const int64_t most = most_panels(params_), tasks = static_cast<int64_t>(heads.size()) * most;
    parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
      const int64_t i = task / most, first = task % most * kLanes;
      const PackedHead& head = heads[static_cast<size_t>(i)];
      const int64_t end = std::min(first + kLanes, head.seq.seq_k);
      for (int64_t n = first; n < end; ++n) store_key(head, n, memory + i * slabs_ * slab_doubles_);
    });
  }

  void store_key(const PackedHead& head, int64_t n, double* memory) const {
    const auto store = [&](const View<void>& view, const double* first, int64_t width,
                           double scale) {
      if (!view) return;
      double* out = view.as<double>().at(head.b, head.seq.k_begin + n, head.kv_head);
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0.0;
        for (int64_t s = 0; s < slabs_; ++s) sum += first[s * slab_doubles_ + c];
        out[c] = sum * scale;
      }
    };
    const Slab slab = slab_at(memory, nullptr);
    store(params_.dk1, slab.dk[0] + n * padded(params_.head_dim), params_.head_dim, scale_[0]);
    store(params_.dk2, slab.dk[1] + n * padded(params_.head_dim), params_.head_dim, scale_[1]);
    store(params_.dv, slab.dv + n * padded(params_.value_dim), params_.value_dim, 1.0);
  }

  /// Sums over the dimensions along which lambda is broadcast: their strides are 0.
  void store_dlambda() const {
    const View<double> view = params_.dlambda.as<double>();
    if (!view) return;
    const int64_t rows =
        params_.cu_seqlens_q == nullptr ? params_.seq_q : params_.cu_seqlens_q[params_.batch];
    const auto size = [](int64_t count, int64_t stride) { return stride == 0 ? 1 : count; };
    std::fill_n(view.data,
                size(params_.batch, view.batch_stride) * size(rows, view.seq_stride) *
                    size(params_.heads, view.head_stride),
                0.0);
    for (int64_t b = 0; b < params_.batch; ++b) {
      const Sequence seq = sequence_of(params_, b);
      for (int64_t m = 0; m < seq.seq_q; ++m) {
        for (int64_t h = 0; h < params_.heads; ++h) {
          *view.at(b, seq.q_begin + m, h) +=
              dlambda_[static_cast<size_t>((b * params_.seq_q + m) * params_.heads + h)];
        }
      }
    }
  }

  void store_dnorm_weight() const {
    auto* out = static_cast<double*>(params_.dnorm_weight);
    if (out == nullptr) return;
    for (int64_t c = 0; c < params_.value_dim; ++c) {
      double sum = 0.0;
      for (size_t i = static_cast<size_t>(c); i < dweight_.size();
           i += static_cast<size_t>(params_.value_dim)) {
        sum += dweight_[i];
      }
      out[c] = sum * params_.epilogue.out_scale;
    }
  }

  const BackwardParams& params_;
  const reference::HeadEpilogue<double> epilogue_;
  const double scale_[2] = {params_.scale, params_.scale2};
  const bool needs_output_ = params_.epilogue.norm || params_.dnorm_weight != nullptr;
  const int64_t share_ = params_.noise_group();
  /// Noise heads of a kv head.
  const int64_t group_ = params_.kv_heads == 0 ? 1 : params_.heads / share_ / params_.kv_heads;
  const int64_t blocks_ = (params_.seq_q + kBlockRows - 1) / kBlockRows;  // of one head
  const int64_t keys_ = padded(params_.seq_k);
  const int64_t slab_doubles_ = keys_ * (2 * padded(params_.head_dim) + padded(params_.value_dim));
  const int64_t slabs_ = std::clamp<int64_t>(
      kSlabBytes / std::max<int64_t>(1, slab_doubles_* static_cast<int64_t>(sizeof(double))), 1,
      std::clamp<int64_t>(group_* blocks_, 1, kMostSlabs));
  std::vector<double> dweight_;  // [B, Hkv, slabs, Dv]
  std::vector<double> dlambda_;  // [B, M, H]
};

}  // namespace

void backward(const BackwardParams& params) {
  validate(params, /*host_arrays=*/true);
  Backward(params).run();
}

}  // namespace diffattn::cpu::float64
