// SPDX-License-Identifier: Apache-2.0
//
// The backward over all heads. The blocks of query rows of one kv head add to the same dk and dv.
// To run them in parallel, the code gives each block to one of several slabs, private copies of dk
// and dv. The number of slabs depends on the shape alone. The blocks of a slab run in order, and at
// the end the slabs are added in order. So results do not depend on the number of threads. A block
// may hold the rows of all heads of a noise head, so that map 2 is computed once (noise_sharing.h).

#include <algorithm>
#include <cstring>

#include "diffattn/kernels/backend.h"
#include "kernels/cpu/host/gradient_sums.h"
#include "kernels/cpu/host/head.h"
#include "kernels/cpu/host/kernels.h"
#include "kernels/cpu/host/memory.h"
#include "kernels/cpu/host/noise_sharing.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {
namespace {

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

struct BackwardRun {
  const BackwardParams& params;
  const TileCode& code;
  /// Gradient of the row statistics [B, M, H, kStatCount]; null if the incoming gradient is dout.
  const View<const void>* dstats = nullptr;
  const bool wants_o = params.epilogue.norm || params.dnorm_weight != nullptr;
  const PackPlan plan{.problem = params,
                      .v = params.v,
                      .code = code,
                      .rows_of_v = wants_o && !params.o,
                      .backward = true};
  const std::vector<float> gain = gain_of(params.epilogue, params.value_dim);
  const bool is_long = params.seq_k > kLongKeys;
  const bool has_tiles = code.rows == 32;
  const bool is_wide = has_tiles && params.seq_k <= kWideKeys &&
                       2 * params.head_dim + params.value_dim > kWideColumns;
  const int block_rows =
      ceil_div(has_tiles && !is_long ? kBackwardRowsOfTiles : kBackwardRows, code.rows) *
      code.rows * (is_wide ? 2 : 1);
  const int64_t map_panels = panels_in_key_blocks(params.seq_k, code);
  using Rows = BlockRows<BackwardRow>;
  const int64_t group = params.noise_group();
  const std::vector<Head> heads = heads_that_share();
  const int64_t row_bytes = Rows::bytes(group * block_rows);
  const int64_t scratch =
      row_bytes +
      (dstats == nullptr ? code.backward_scratch : code.stats_backward_scratch)(
          block_rows, static_cast<int>(group), map_panels, params.head_dim, params.value_dim);
  const bool dmask_alone = params.dmask != nullptr && rows_own_dmask();
  DlambdaSum dlambda{params};
  NoiseQuerySum noise_queries{params, heads};
  std::vector<double> dgain{};  // [kv heads of all sequences][kMaxSlabs][Dv]

  void run() {
    if (params.dmask != nullptr) clear_dmask(params);
    if (params.dnorm_weight != nullptr) {
      dgain.assign(heads.size() * kMaxSlabs * params.value_dim, 0.0);
    }
    for (size_t first = 0; first < heads.size();) {
      size_t last = first;
      for (int64_t tasks = 0; last < heads.size() && tasks < threads().count(); ++last) {
        tasks += slabs(heads[last]);
      }
      run_wave({heads.data() + first, last - first}, first);
      first = last;
    }
    dlambda.store();
    noise_queries.store();
    store_dgain(heads.size());
  }

 private:
  /// Heads of one noise head run together if that is no more work. dA, dv, A^T dO, and q k, ds k
  /// and ds^T q of each map make up the work of a head.
  std::vector<Head> heads_that_share() const {
    std::vector<Head> all = heads_of(params, /*empty=*/true);
    const int64_t d = params.head_dim, values = (plan.rows_of_v ? 3 : 2) * params.value_dim;
    share_noise_heads(all, group, {6 * d + values, 3 * d + values}, code.rows);
    return all;
  }

  /// Where the blocks of one slab add their sums.
  struct Sums {
    float* slab;    // dk and dv; without keys it has no elements
    double* dgain;  // [Dv], or null
  };

  int64_t blocks(const Head& head) const { return ceil_div(head.noise_rows(), block_rows); }
  int64_t slabs(const Head& head) const {
    const int64_t blocks_of =
        params.kv_heads < kFewHeads ? kBlocksPerSlabOfFewHeads : kBlocksPerSlab;
    const int64_t least = ceil_div(is_wide ? ceil_div(blocks_of, 2) : blocks_of, head.share);
    const int64_t most =
        is_long ? std::clamp<int64_t>(kSlabsOfLong / params.kv_heads, 2, kMaxSlabs) : kMaxSlabs;
    return std::clamp<int64_t>(ceil_div(blocks(head), least), 1, most);
  }
  int64_t strips(const Head& head) const {
    return ceil_div(plan.panels(head) * code.columns, code.rows);
  }
  /// Returns the number of floats of an [N, width] gradient stored in tiles.
  int64_t tiles(const Head& head, int64_t width) const {
    return strips(head) * code.rows * ceil_div(width, code.columns) * code.columns;
  }
  int64_t slab_floats(const Head& head) const {
    return 2 * tiles(head, params.head_dim) + tiles(head, params.value_dim) + flag_floats(head);
  }
  /// Returns the number of floats after the tiles that hold one flag per strip
  /// (BackwardBlock::begun).
  int64_t flag_floats(const Head& head) const { return ceil_div(strips(head), 64) * 16; }
  uint8_t* flags(const Head& head, float* slab) const {
    return reinterpret_cast<uint8_t*>(slab + slab_floats(head) - flag_floats(head));
  }

  /// True if no two rows add to the same element of dmask.
  bool rows_own_dmask() const {
    const MaskStrides& stride = params.dmask_strides;
    return (stride.batch != 0 || params.batch == 1) && (stride.head != 0 || params.heads == 1) &&
           (stride.row != 0 || params.seq_q == 1);
  }

  void run_wave(std::span<const Head> heads, size_t index) {
    int64_t bytes = 0, slab_bytes = 0, pack_tasks = 0, tasks = 0;
    for (const Head& head : heads) {
      bytes += plan.bytes(head);
      slab_bytes += slabs(head) * slab_floats(head) * 4;
      pack_tasks += plan.panels(head);
      tasks += slabs(head);
    }
    char* memory = CallMemory::take(CallMemory::kPacked, bytes);
    float* slab = reinterpret_cast<float*>(CallMemory::take(CallMemory::kSlabs, slab_bytes));
    std::vector<PackedKeys> keys;
    std::vector<float*> sums;  // [heads]: the slabs of each head, one after the other
    for (const Head& head : heads) {
      keys.push_back(plan.place(head, memory));
      memory += plan.bytes(head);
      sums.push_back(slab);
      slab += slabs(head) * slab_floats(head);
    }
    parallel_for(pack_tasks, worker_count(pack_tasks), [&](int64_t task, int64_t) {
      size_t i = 0;
      while (task >= keys[i].panels) task -= keys[i++].panels;
      plan.pack(heads[i], keys[i], task);
    });

    const int64_t workers = worker_count(tasks);
    char* scratches = CallMemory::take(CallMemory::kScratch, workers * scratch);
    parallel_for(tasks, workers, [&](int64_t task, int64_t worker) {
      size_t i = 0;
      while (task >= slabs(heads[i])) task -= slabs(heads[i++]);
      float* const own = sums[i] + task * slab_floats(heads[i]);
      std::memset(flags(heads[i], own), 0, strips(heads[i]));
      double* const gains =
          dgain.empty() ? nullptr : &dgain[((index + i) * kMaxSlabs + task) * params.value_dim];
      const Sums into{.slab = own, .dgain = gains};
      for (int64_t b = task; b < blocks(heads[i]); b += slabs(heads[i])) {
        run_block(heads[i], keys[i], b * block_rows, (b + 1) * block_rows, &into,
                  scratches + worker * scratch);
      }
    });
    for (size_t i = 0; i < heads.size(); ++i) {
      store_key_gradients(heads[i], sums[i]);
      if (params.dmask != nullptr && !dmask_alone) add_shared_dmask(heads[i], keys[i]);
    }
  }

  /// Runs noise rows [first, end) of the head. If `into` is null, computes dmask only.
  void run_block(const Head& head, const PackedKeys& keys, int64_t first, int64_t end,
                 const Sums* into, char* memory) {
    const Rows rows(group * block_rows, memory);
    const int count = static_cast<int>(std::min(end, head.noise_rows()) - first);
    for (int64_t h = 0; h < head.share; ++h) {
      for (int i = 0; i < count; ++i) {
        const int64_t r = head.row(first + i, h);
        Row& row = rows.rows[h * count + i] = row_of(params, head, r);
        rows.outputs[h * count + i] = outputs_of(head, r, row, into != nullptr);
      }
    }
    BackwardBlock block{};
    block.maps = maps_of(params, keys, map_panels);
    block.maps.rows = rows.rows;
    block.maps.count = count;
    block.maps.heads = static_cast<int>(head.share);
    block.rows = rows.outputs;
    block.value_dim = params.value_dim;
    block.epilogue = {.norm = params.epilogue.norm,
                      .eps = static_cast<float>(params.epilogue.norm_eps),
                      .gain = gain.data()};
    block.scale[0] = static_cast<float>(params.scale);
    block.scale[1] = static_cast<float>(params.scale2);
    block.dq_dtype[0] = params.dtype;
    block.dq_dtype[1] = noise_queries.has(head) ? Dtype::kFloat32 : params.dtype;
    block.dmask_stride = params.dmask_strides.column;
    block.products = into != nullptr;
    if (into != nullptr) {
      block.dk[0] = into->slab;
      block.dk[1] = into->slab + tiles(head, params.head_dim);
      block.dv = into->slab + 2 * tiles(head, params.head_dim);
      block.begun = flags(head, into->slab);
      block.dgain = into->dgain;
    }
    (dstats == nullptr ? code.backward : code.stats_backward)(&block, memory + row_bytes);
  }

  BackwardRow outputs_of(const Head& head, int64_t r, Row& row, bool products) {
    const int64_t h = head.head(r), m = head.query(r), l = head.seq.q_begin + m;
    BackwardRow out{};
    if (dstats == nullptr) {
      out.dout = at(params.dout, params.dtype, head.b, l, h);
    } else {
      out.dstats = dstats->as<const float>().at(head.b, l, h);
    }
    if (params.o) out.o = at(params.o, params.dtype, head.b, l, h);
    if (params.lse1 && params.lse2) {
      row.ref[0] = first_ref(*params.lse1.as<const float>().at(head.b, l, h));
      row.ref[1] = first_ref(*params.lse2.as<const float>().at(head.b, l, h));
    }
    if (products) {
      if (params.dq1) out.dq[0] = at(params.dq1, params.dtype, head.b, l, h);
      if (noise_queries.has(head)) {
        out.dq[1] = noise_queries.row(head, r);
      } else if (params.dq2) {
        out.dq[1] = at(params.dq2, params.dtype, head.b, l, h / group);
      }
      out.dlambda = dlambda.row(head.b, l, h);
    }
    if (params.dmask != nullptr && products == dmask_alone) {
      const MaskStrides& stride = params.dmask_strides;
      out.dmask = static_cast<float*>(params.dmask) + head.b * stride.batch + h * stride.head +
                  m * stride.row;
    }
    return out;
  }

  /// Returns a row's first ref: its saved lse in log2 units, or 0 if that is not finite. A row that
  /// sees nothing has lse = -inf. A wrong lse costs time but no accuracy.
  static float first_ref(float lse) {
    return std::isfinite(lse) ? static_cast<float>(lse / kLn2) : 0.0f;
  }

  void store_key_gradients(const Head& head, float* slabs_of_head) {
    const int64_t d = params.head_dim, stride = slab_floats(head);
    const auto sum = [&](int64_t offset, double factor, int64_t width) {
      return SlabSum{.tiles = slabs_of_head + offset,
                     .begun = flags(head, slabs_of_head),
                     .slabs = slabs(head),
                     .tiles_stride = stride,
                     .begun_stride = stride * static_cast<int64_t>(sizeof(float)),
                     .factor = static_cast<float>(factor),
                     .width = width,
                     .dtype = params.dtype};
    };
    const SlabSum dk1 = sum(0, params.scale, d);
    const SlabSum dk2 = sum(tiles(head, d), params.scale2, d);
    const SlabSum dv = sum(2 * tiles(head, d), 1.0, params.value_dim);
    constexpr int64_t kRowsPerTask = 96;  // a multiple of every R
    const int64_t tasks = ceil_div(head.seq.seq_k, kRowsPerTask);
    parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
      const int64_t end = std::min(head.seq.seq_k, (task + 1) * kRowsPerTask);
      for (int64_t n = task * kRowsPerTask; n < end; n += code.rows) {
        const int count = static_cast<int>(std::min<int64_t>(code.rows, end - n));
        const auto store = [&](const View<void>& view, const SlabSum& from) {
          if (!view) return;
          void* out[kRowsPerTask];
          for (int i = 0; i < count; ++i) {
            out[i] = at(view, params.dtype, head.b, head.seq.k_begin + n + i, head.g);
          }
          code.store_sums(&from, n, count, out);
        };
        store(params.dk1, dk1);
        store(params.dk2, dk2);
        store(params.dv, dv);
      }
    });
  }

  /// Computes dmask if several rows share an element of it. Runs the rows of this head a second
  /// time, for dmask alone, so that no two tasks add to the same element at the same time.
  void add_shared_dmask(const Head& head, const PackedKeys& keys) {
    const int64_t seq_q = head.seq.seq_q;
    const int64_t tasks = ceil_div(seq_q, block_rows);
    const int64_t workers = params.dmask_strides.row != 0 ? worker_count(tasks) : 1;
    char* scratches = CallMemory::take(CallMemory::kScratch, workers * scratch);
    const auto run_rows = [&](int64_t task, int64_t worker) {
      for (int64_t head_row = 0; head_row < head.noise_rows(); head_row += seq_q) {
        const int64_t first = head_row + task * block_rows;
        run_block(head, keys, first, std::min(first + block_rows, head_row + seq_q), nullptr,
                  scratches + worker * scratch);
      }
    };
    parallel_for(tasks, workers, run_rows);
  }

  void store_dgain(size_t heads) {
    if (params.dnorm_weight == nullptr) return;
    float* out = static_cast<float*>(params.dnorm_weight);
    for (int64_t c = 0; c < params.value_dim; ++c) {
      double sum = 0.0;
      for (size_t i = 0; i < heads * kMaxSlabs; ++i) sum += dgain[i * params.value_dim + c];
      out[c] = static_cast<float>(sum * params.epilogue.out_scale);
    }
  }
};

}  // namespace

void run_backward(const BackwardParams& params, const TileCode& code) {
  validate(params, /*host_arrays=*/true);
  BackwardRun{params, code}.run();
}

void run_stats_backward(const StatsBackwardParams& params, const TileCode& code) {
  validate(params, /*host_arrays=*/true);
  BackwardParams inputs;  // without v, dout and dv
  static_cast<Problem&>(inputs) = params;
  static_cast<ProblemGradients&>(inputs) = params;
  inputs.value_dim = 0;
  BackwardRun{inputs, code, &params.dstats}.run();
}

}  // namespace diffattn::cpu
