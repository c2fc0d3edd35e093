// SPDX-License-Identifier: Apache-2.0
//
// The forward over all heads. It packs a few kv heads at a time (a wave) and then runs blocks of
// their query rows as independent tasks. A block may hold the rows of all heads of a noise head, so
// that map 2 is computed once (noise_sharing.h). Heads with few rows are decoded instead: nothing
// is packed, and chunks of keys are the tasks. Only decoding reads pages.

#include <algorithm>

#include "diffattn/kernels/backend.h"
#include "kernels/cpu/host/head.h"
#include "kernels/cpu/host/kernels.h"
#include "kernels/cpu/host/memory.h"
#include "kernels/cpu/host/noise_sharing.h"
#include "kernels/cpu/host/waves.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_size.h"
#include "kernels/gather_pages.h"

namespace diffattn::cpu {
namespace {

struct ForwardRun {
  const ForwardParams& params;
  const TileCode& code;
  const PackPlan plan{.problem = params, .v = params.v, .code = code};
  const std::vector<float> gain = gain_of(params.epilogue, params.value_dim);
  int block_rows = forward_block_rows(params.seq_k, code);
  const int64_t map_panels =
      std::min(panels_in_key_blocks(params.seq_k, code), panels_in_key_blocks(kMapKeys, code));
  const bool stretches = panels_in_key_blocks(params.seq_k, code) > map_panels;

  void run() {
    std::vector<Head> heads = heads_of(params, /*empty=*/false);
    const auto few = std::stable_partition(
        heads.begin(), heads.end(), [](const Head& head) { return head.rows > kDecodeRows; });
    run_decode({few, heads.end()});
    block_rows = share_noise_heads({heads.begin(), few}, params.noise_group(), pair_work(),
                                   code.rows, block_rows);
    const int64_t scratch =
        code.forward_scratch(block_rows, map_panels, params.head_dim, params.value_dim);
    using Rows = BlockRows<ForwardRow>;
    const int64_t count = params.noise_group() * block_rows;
    Waves(plan, Rows::bytes(count) + scratch)
        .run(
            {heads.begin(), few},
            [&](const Head& head) { return (head.noise_rows() + block_rows - 1) / block_rows; },
            [&](const Head& head, const PackedKeys& keys, int64_t index, char* memory) {
              const Rows rows(count, memory);
              const ForwardBlock block = make_block(head, keys, index * block_rows, rows);
              code.forward(&block, memory + Rows::bytes(count));
            });
  }

 private:
  /// Returns the work of both maps of scores and of their product with v. Together with another
  /// head, map 2 takes no product of its own unless O2 is summed apart (forward.h).
  PairWork pair_work() const {
    const int64_t d = params.head_dim, dv = params.value_dim;
    return {2 * d + (stretches || params.o2 ? 2 : 1) * dv, d + dv};
  }

  /// True if the rows of k1, k2 and v hold all kv heads without gaps.
  bool heads_are_interleaved() const {
    const auto dense = [&](const View<const void>& view, int64_t width) {
      return view.head_stride == width && view.seq_stride == params.kv_heads * width;
    };
    return dense(params.k1, params.head_dim) && dense(params.k2, params.head_dim) &&
           dense(params.v, params.value_dim);
  }

  /// Decodes heads with few rows. A task is one chunk of keys of one head, or of all interleaved
  /// heads of a batch entry if that leaves enough tasks. Chunks always start at multiples of
  /// kDecodeKeys, so this choice does not change results.
  void run_decode(std::span<const Head> heads) {
    const auto count = static_cast<int64_t>(heads.size());
    if (count == 0) return;
    const int64_t chunks = std::max<int64_t>(1, (params.seq_k + kDecodeKeys - 1) / kDecodeKeys);
    const int64_t floats = code.decode_part_floats(kDecodeRows, params.value_dim);
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    float* memory = reinterpret_cast<float*>(
        CallMemory::take(CallMemory::kScratch, count * chunks * floats * kFloat));
    std::vector<PackedKeys> keys(count);
    std::vector<Row> rows(count * kDecodeRows);
    std::vector<ForwardRow> outputs(count * kDecodeRows);
    std::vector<ForwardBlock> blocks(count);
    std::vector<float*> parts(count * chunks);  // [chunks][heads]
    for (int64_t i = 0; i < count; ++i) {
      keys[i] = plan.rows_only(heads[i]);
      blocks[i] = make_rows(heads[i], keys[i], &rows[i * kDecodeRows], &outputs[i * kDecodeRows]);
      const int64_t part = code.decode_part_floats(blocks[i].maps.count, params.value_dim);
      for (int64_t c = 0; c < chunks; ++c) {
        parts[c * count + i] = memory + i * chunks * floats + c * part;
      }
    }
    const bool interleaved = params.pages.table == nullptr && heads_are_interleaved() &&
                             count / params.kv_heads * chunks >= threads().count();
    const int64_t together = interleaved ? params.kv_heads : 1, tasks = count / together * chunks;
    parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
      const int64_t i = task / chunks * together, c = task % chunks, first = c * kDecodeKeys;
      const DecodeGroup group{.heads = &blocks[i],
                              .parts = &parts[c * count + i],
                              .count = static_cast<int>(together),
                              .interleaved = interleaved,
                              .resumes = false};
      const int64_t end = std::min(first + kDecodeKeys, heads[i].seq.seq_k);
      if (params.pages.table != nullptr) {
        decode_pages(group, heads[i], first, end);
      } else {
        code.decode(&group, first, end);
      }
    });
    parallel_for(count, worker_count(count),
                 [&](int64_t i, int64_t) { code.decode_join(&blocks[i], chunks, parts[i]); });
  }

  /// Decodes one head, page by page. A page begins at a multiple of kPagedKeys, so the results have
  /// the bits of a contiguous cache.
  void decode_pages(DecodeGroup group, const Head& head, int64_t first, int64_t end) const {
    ForwardBlock block = group.heads[0];
    PackedKeys keys = *block.maps.keys;
    block.maps.keys = &keys;
    group.heads = &block;
    end = std::min(end, head.seq.end_key);
    const int64_t size = params.pages.size;
    do {
      const int64_t page = first / size, next = std::min(end, (page + 1) * size);
      if (first < end) {  // entries behind the last key may be anything
        const int32_t index = params.pages.table[head.b * params.pages.stride + page];
        const auto place = [&](const View<const void>& view, Matrix& rows) {
          rows.data = at(view, params.dtype, index, -page * size, head.g);
        };
        place(params.k1, keys.k_rows[0]);
        place(params.k2, keys.k_rows[1]);
        place(params.v, keys.v_rows);
      }
      code.decode(&group, first, std::max(first, next));
      group.resumes = true;
      first = next;
    } while (first < end);
  }

  /// Returns the block of noise rows from `first` on, at most block_rows of them.
  ForwardBlock make_block(const Head& head, const PackedKeys& keys, int64_t first,
                          const BlockRows<ForwardRow>& rows) const {
    const int count = static_cast<int>(std::min<int64_t>(block_rows, head.noise_rows() - first));
    for (int64_t h = 0; h < head.share; ++h) {
      for (int i = 0; i < count; ++i) {
        const int64_t r = head.row(first + i, h);
        rows.rows[h * count + i] = row_of(params, head, r);
        rows.outputs[h * count + i] = outputs_of(head, r);
      }
    }
    ForwardBlock block = block_of(keys, rows.rows, rows.outputs, count);
    block.maps.heads = static_cast<int>(head.share);
    return block;
  }

  /// Returns all rows of the head for decoding, each with its own map 2.
  ForwardBlock make_rows(const Head& head, const PackedKeys& keys, Row* rows,
                         ForwardRow* outputs) const {
    for (int64_t r = 0; r < head.rows; ++r) {
      rows[r] = row_of(params, head, r);
      outputs[r] = outputs_of(head, r);
    }
    return block_of(keys, rows, outputs, static_cast<int>(head.rows));
  }

  ForwardRow outputs_of(const Head& head, int64_t r) const {
    const int64_t h = head.head(r), l = head.seq.q_begin + head.query(r);
    const auto optional = [&](const View<void>& view) {
      return view ? at(view, params.dtype, head.b, l, h) : nullptr;
    };
    return {.out = at(params.out, params.dtype, head.b, l, h),
            .o = optional(params.o),
            .o2 = optional(params.o2),
            .lse = {params.lse1 ? params.lse1.as<float>().at(head.b, l, h) : nullptr,
                    params.lse2 ? params.lse2.as<float>().at(head.b, l, h) : nullptr}};
  }

  ForwardBlock block_of(const PackedKeys& keys, const Row* rows, const ForwardRow* outputs,
                        int count) const {
    ForwardBlock block{};
    block.maps = maps_of(params, keys, map_panels);
    block.maps.rows = rows;
    block.maps.count = count;
    block.rows = outputs;
    block.value_dim = params.value_dim;
    block.epilogue = {.norm = params.epilogue.norm,
                      .eps = static_cast<float>(params.epilogue.norm_eps),
                      .gain = gain.data()};
    block.stretches = stretches;
    return block;
  }
};

/// True if decoding can read the pages where they are.
bool reads_pages(const ForwardParams& params) {
  const int64_t rows = params.heads / std::max<int64_t>(1, params.kv_heads) * params.seq_q;
  return params.pages.size % kPagedKeys == 0 && rows <= kDecodeRows;
}

}  // namespace

void run_forward(const ForwardParams& params, const TileCode& code) {
  validate(params, /*host_arrays=*/true);
  if (params.pages.table != nullptr && !reads_pages(params)) {
    const GatheredPages gathered(params);
    ForwardRun{gathered.params(), code}.run();
  } else {
    ForwardRun{params, code}.run();
  }
}

}  // namespace diffattn::cpu
