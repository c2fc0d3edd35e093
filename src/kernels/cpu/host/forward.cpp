// SPDX-License-Identifier: Apache-2.0
//
// The forward over all heads: kv heads are packed a few at a time, then blocks of query rows of
// these heads are independent tasks. Heads with few rows are not packed: chunks of keys are tasks.

#include <algorithm>

#include "diffattn/kernels/backend.h"
#include "kernels/cpu/host/head.h"
#include "kernels/cpu/host/kernels.h"
#include "kernels/cpu/host/memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {
namespace {

struct ForwardRun {
  const ForwardParams& params;
  const TileCode& code;
  const PackPlan plan{.problem = params, .v = params.v, .code = code};
  const std::vector<float> gain = gain_of(params.epilogue, params.value_dim);
  const int block_rows = forward_block_rows(params.seq_k, code);
  const int64_t map_panels =
      std::min(panels_in_key_blocks(params.seq_k, code), panels_in_key_blocks(kMapKeys, code));
  const bool stretches = panels_in_key_blocks(params.seq_k, code) > map_panels;

  void run() {
    std::vector<Head> heads = heads_of(params, /*empty=*/false);
    const auto few = std::stable_partition(
        heads.begin(), heads.end(), [](const Head& head) { return head.rows > kDecodeRows; });
    run_decode({few, heads.end()});
    heads.erase(few, heads.end());
    for (size_t first = 0; first < heads.size();) {
      const size_t last = end_of_wave(heads, first);
      run_wave({heads.data() + first, last - first});
      first = last;
    }
  }

 private:
  int64_t blocks(const Head& head) const { return (head.rows + block_rows - 1) / block_rows; }

  /// Heads until every worker has a few blocks to take, while their copies stay small.
  size_t end_of_wave(const std::vector<Head>& heads, size_t first) const {
    const int64_t wanted = kTasksPerWorker * threads().count();
    int64_t tasks = 0, bytes = 0;
    size_t last = first;
    while (last < heads.size() && tasks < wanted) {
      bytes += plan.bytes(heads[last]);
      if (last > first && bytes > kWaveBytes) break;
      tasks += blocks(heads[last++]);
    }
    return last;
  }

  void run_wave(std::span<const Head> heads) {
    int64_t bytes = 0, pack_tasks = 0, tasks = 0;
    for (const Head& head : heads) {
      bytes += plan.bytes(head);
      pack_tasks += plan.panels(head);
      tasks += blocks(head);
    }
    char* memory = CallMemory::take(CallMemory::kPacked, bytes);
    std::vector<PackedKeys> keys;
    for (const Head& head : heads) {
      keys.push_back(plan.place(head, memory));
      memory += plan.bytes(head);
    }
    parallel_for(pack_tasks, worker_count(pack_tasks), [&](int64_t task, int64_t) {
      size_t i = 0;
      while (task >= keys[i].panels) task -= keys[i++].panels;
      plan.pack(heads[i], keys[i], task);
    });

    const int64_t workers = worker_count(tasks);
    const int64_t scratch =
        code.forward_scratch(block_rows, map_panels, params.head_dim, params.value_dim);
    char* scratches = CallMemory::take(CallMemory::kScratch, workers * scratch);
    parallel_for(tasks, workers, [&](int64_t task, int64_t worker) {
      size_t i = 0;
      while (task >= blocks(heads[i])) task -= blocks(heads[i++]);
      // Late rows see most when causal: they go first, so that no long task is left for the end.
      run_block(heads[i], keys[i], blocks(heads[i]) - 1 - task, scratches + worker * scratch);
    });
  }

  void run_block(const Head& head, const PackedKeys& keys, int64_t index, void* scratch) const {
    with_block(head, keys, index * block_rows,
               [&](const ForwardBlock& block) { code.forward(&block, scratch); });
  }

  /// Heads with few rows: chunks of keys are the tasks. How keys are cut depends on nothing else.
  void run_decode(std::span<const Head> heads) {
    const int64_t chunks = std::max<int64_t>(1, (params.seq_k + kDecodeKeys - 1) / kDecodeKeys);
    const int64_t floats = code.decode_part_floats(kDecodeRows, params.value_dim) * chunks;
    const auto count = static_cast<int64_t>(heads.size());
    if (count == 0) return;
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    float* parts =
        reinterpret_cast<float*>(CallMemory::take(CallMemory::kScratch, count * floats * kFloat));
    std::vector<PackedKeys> keys;
    for (const Head& head : heads) keys.push_back(plan.rows_only(head));
    parallel_for(count * chunks, worker_count(count * chunks), [&](int64_t task, int64_t) {
      const int64_t i = task / chunks, first = task % chunks * kDecodeKeys;
      with_block(heads[i], keys[i], 0, [&](const ForwardBlock& block) {
        const int64_t part = code.decode_part_floats(block.maps.count, params.value_dim);
        code.decode(&block, first, std::min(first + kDecodeKeys, heads[i].seq.seq_k),
                    parts + i * floats + task % chunks * part);
      });
    });
    parallel_for(count, worker_count(count), [&](int64_t i, int64_t) {
      with_block(heads[i], keys[i], 0, [&](const ForwardBlock& block) {
        code.decode_join(&block, chunks, parts + i * floats);
      });
    });
  }

  /// Calls body(block) with the rows from `first` on, at most block_rows of them.
  template <class Body>
  void with_block(const Head& head, const PackedKeys& keys, int64_t first, const Body& body) const {
    Row rows[kMaxBlockRows];
    ForwardRow outputs[kMaxBlockRows];
    const int count = static_cast<int>(std::min<int64_t>(block_rows, head.rows - first));
    const auto optional = [&](const View<void>& view, int64_t l, int64_t h) {
      return view ? at(view, params.dtype, head.b, l, h) : nullptr;
    };
    for (int i = 0; i < count; ++i) {
      const int64_t h = head.head(first + i), l = head.seq.q_begin + head.query(first + i);
      rows[i] = row_of(params, head, first + i);
      outputs[i].out = at(params.out, params.dtype, head.b, l, h);
      outputs[i].o = optional(params.o, l, h);
      outputs[i].o2 = optional(params.o2, l, h);
      outputs[i].lse[0] = params.lse1 ? params.lse1.as<float>().at(head.b, l, h) : nullptr;
      outputs[i].lse[1] = params.lse2 ? params.lse2.as<float>().at(head.b, l, h) : nullptr;
    }
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
    body(block);
  }
};

}  // namespace

void run_forward(const ForwardParams& params, const TileCode& code) {
  validate(params, /*host_arrays=*/true);
  ForwardRun{params, code}.run();
}

}  // namespace diffattn::cpu
