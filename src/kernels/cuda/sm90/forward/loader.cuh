// SPDX-License-Identifier: Apache-2.0
//
// The start of a forward kernel, and the thread of its producer warpgroup that issues all TMA
// loads.
#pragma once

#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/sm90/forward/schedule.cuh"

namespace diffattn::cuda::sm90 {

/// Initialises the mbarriers and loads the head norm's weights. All threads call it.
template <class T, class Config>
__device__ inline void prepare_smem(const ForwardArguments<T>& args, char* memory) {
  const uint32_t smem = ptx::smem_address(memory);
  if (threadIdx.x == 0) {
    ptx::launch_dependents();
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::barrier_init(smem + Config::kKFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kVFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kKEmpty + 8 * i, 8);
      ptx::barrier_init(smem + Config::kVEmpty + 8 * i, 8);
    }
    for (int i = 0; i < 2 * Config::kQBuffers; ++i) {
      ptx::barrier_init(smem + Config::kQFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kQEmpty + 8 * i, 4);
    }
    for (int i = 0; i < Config::kItemSlots; ++i) {
      ptx::barrier_init(smem + Config::kItemFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kItemEmpty + 8 * i, 8);
    }
    ptx::barrier_init(smem + Config::kTake, 1);
    ptx::barrier_init_fence();
  }
  float* const gains = reinterpret_cast<float*>(memory + Config::kGains);
  for (int c = threadIdx.x; c < Config::kValueDim; c += Config::kThreads) {
    gains[c] = args.epilogue.weight == nullptr ? 1.0f : args.epilogue.weight[c];
  }
  __syncthreads();
}

/// Loads q1 and q2 of each item for both consumers, then k1, k2 and v tile by tile. Runs in one
/// thread.
template <class T, class Config>
struct Loader {
  static constexpr int kStages = Config::kStages, kQBuffers = Config::kQBuffers;

  const ForwardArguments<T>& args;
  const uint32_t smem;

  __device__ __forceinline__ void run() {
    unsigned tile = 0;  // pipeline number, counted over all items
    for (int count = 0;; ++count) {
      const int slot = count % Config::kItemSlots;
      const uint32_t item = smem + Config::kItems + slot * kItemBytes;
      ptx::barrier_wait_idle(smem + Config::kItemFull + 8 * slot, count / Config::kItemSlots & 1);
      const int4 coordinates = ptx::load_smem_int4(item);  // row, head, batch, seq_q
      const int4 begin = ptx::load_smem_int4(item + 16);   // q_begin, k_begin, first_column, tiles
      const int kv_head = ptx::load_smem_int(item + 44);
      const int batch = args.packed ? 0 : coordinates.z;
#pragma unroll 1
      for (int consumer = 0; consumer < 2; ++consumer) {
        load_q(count, consumer, coordinates, begin.x, batch);
      }
      if (coordinates.x < 0) return;
      const int row = begin.y + begin.z;
#pragma unroll 1
      for (int j = 0; j < begin.w; ++j, ++tile) {
        if (j == max(0, begin.w - kTakeTiles)) ptx::barrier_arrive(smem + Config::kTake);
        load_keys(tile, row + j * Config::kBlockN, kv_head, batch);
      }
    }
  }

  /// Loads q1 and q2 of one consumer. After the last item (coordinates.x < 0) it only arrives, so
  /// that the consumers wake up and end.
  __device__ __forceinline__ void load_q(int count, int consumer, int4 coordinates, int q_begin,
                                         int batch) {
    const int slot = 2 * (count % kQBuffers) + consumer;
    const uint32_t full = smem + Config::kQFull + 8 * slot;
    const uint32_t q_smem = smem + Config::kQ + slot * Config::kQBytes;
    ptx::barrier_wait_idle(smem + Config::kQEmpty + 8 * slot, (count / kQBuffers & 1) ^ 1);
    if (coordinates.x < 0) return ptx::barrier_arrive(full);
    ptx::barrier_arrive_expect(full, Config::kQBytes);
    const int row = q_begin + coordinates.x + consumer_half(consumer, count) * kConsumerRows;
    ptx::load_box(q_smem, args.q1, full, 0, coordinates.y, row, 0, batch);
    ptx::load_box(q_smem + Config::kQMap, args.q2, full, 0, coordinates.y, row, 0, batch);
  }

  /// Loads k1, k2 and v of pipeline tile `tile`, whose first key is `row` of the tensors.
  __device__ __forceinline__ void load_keys(unsigned tile, int row, int kv_head, int batch) {
    const unsigned stage = tile % kStages, parity = (tile / kStages & 1) ^ 1;
    const uint32_t k_full = smem + Config::kKFull + 8 * stage;
    const uint32_t k_smem = smem + Config::kK + stage * 2 * Config::kKMap;
    ptx::barrier_wait_idle(smem + Config::kKEmpty + 8 * stage, parity);
    ptx::barrier_arrive_expect(k_full, args.shared_k ? Config::kKMap : 2 * Config::kKMap);
    ptx::load_box(k_smem, args.k1, k_full, 0, kv_head, row, 0, batch);
    if (!args.shared_k) {
      ptx::load_box(k_smem + Config::kKMap, args.k2, k_full, 0, kv_head, row, 0, batch);
    }
    const uint32_t v_full = smem + Config::kVFull + 8 * stage;
    ptx::barrier_wait_idle(smem + Config::kVEmpty + 8 * stage, parity);
    ptx::barrier_arrive_expect(v_full, Config::kVBytes);
    ptx::load_box(smem + Config::kV + stage * Config::kVBytes, args.v, v_full, 0, kv_head, row, 0,
                  batch);
  }
};

}  // namespace diffattn::cuda::sm90
