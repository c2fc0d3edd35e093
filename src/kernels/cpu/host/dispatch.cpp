// SPDX-License-Identifier: Apache-2.0
//
// The public entry points of each instruction set (cpu.h).

#include "diffattn/kernels/cpu.h"
#include "kernels/cpu/host/cpu_features.h"
#include "kernels/cpu/host/kernels.h"

namespace diffattn::cpu {

int forward_block_rows(int64_t keys, const TileCode& code) {
  // At 2048 keys the maps of 48 rows take 768 KB. With AMX the maps of 32 rows take 512 KB, and the
  // packed keys 1 MB in bf16.
  if (code.rows == 32) return keys <= 512 ? 64 : 32;
  return keys <= 2048 ? 48 : 24;
}

int whole_block_rows(int64_t keys, const TileCode& code) {
  return keys <= kMapKeys ? forward_block_rows(keys, code) : code.rows;
}

namespace avx2 {
bool available() { return has_avx2(); }
bool takes(const Problem& problem) { return problem.dtype != Dtype::kFloat64; }
void forward(const ForwardParams& params) { run_forward(params, tile_code()); }
void backward(const BackwardParams& params) { run_backward(params, tile_code()); }
void stats(const StatsParams& params) { run_stats(params, tile_code()); }
void stats_backward(const StatsBackwardParams& params) { run_stats_backward(params, tile_code()); }
void map(const MapParams& params) { run_map(params, tile_code()); }
}  // namespace avx2

namespace avx512 {
bool available() { return has_avx512(); }
bool takes(const Problem& problem) { return problem.dtype != Dtype::kFloat64; }
void forward(const ForwardParams& params) { run_forward(params, tile_code()); }
void backward(const BackwardParams& params) { run_backward(params, tile_code()); }
void stats(const StatsParams& params) { run_stats(params, tile_code()); }
void stats_backward(const StatsBackwardParams& params) { run_stats_backward(params, tile_code()); }
void map(const MapParams& params) { run_map(params, tile_code()); }
}  // namespace avx512

namespace avx512_bf16 {
bool available() { return has_avx512_bf16(); }
bool takes(const Problem& problem) { return problem.dtype == Dtype::kBFloat16; }
void forward(const ForwardParams& params) { run_forward(params, tile_code()); }
void backward(const BackwardParams& params) { run_backward(params, tile_code()); }
void stats(const StatsParams& params) { run_stats(params, tile_code()); }
void stats_backward(const StatsBackwardParams& params) { run_stats_backward(params, tile_code()); }
void map(const MapParams& params) { run_map(params, tile_code()); }
}  // namespace avx512_bf16

namespace amx {
bool available() { return has_amx_bf16(); }
bool takes(const Problem& problem) { return problem.dtype == Dtype::kBFloat16; }
void forward(const ForwardParams& params) { run_forward(params, tile_code()); }
void backward(const BackwardParams& params) { run_backward(params, tile_code()); }
void stats(const StatsParams& params) { run_stats(params, tile_code()); }
void stats_backward(const StatsBackwardParams& params) { run_stats_backward(params, tile_code()); }
void map(const MapParams& params) { run_map(params, tile_code()); }
}  // namespace amx

}  // namespace diffattn::cpu
