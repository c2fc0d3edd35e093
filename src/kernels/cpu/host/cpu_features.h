// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cpu {

/// True if the processor has these instructions and the operating system lets us use them. Each
/// function checks once.
bool has_avx2();         // with FMA and F16C
bool has_avx512();       // has_avx2() and F, BW, DQ, VL
bool has_avx512_bf16();  // has_avx512() and BF16
bool has_amx_bf16();     // has_avx512_bf16(), AMX-TILE and AMX-BF16; asks Linux for permission

/// True if vdpbf16ps has more FLOP/s than FMA. It has twice as many on AMD processors (Zen 4 and
/// later) and half as many on Intel's (87 against 183 GFLOP/s on a Xeon with AMX).
bool has_fast_bf16_dot_products();

/// True on AMD processors with AVX-512 units of 512 bits (Zen 5 and later).
bool has_full_avx512_on_amd();

}  // namespace diffattn::cpu
