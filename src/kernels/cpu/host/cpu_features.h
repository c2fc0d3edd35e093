// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cpu {

/// What this processor has and this system lets us use. Asked once.
bool has_avx2();         // with FMA and F16C
bool has_avx512();       // F, BW, DQ, VL
bool has_avx512_bf16();  // and the above
bool has_amx_bf16();     // and the above; asks the kernel for permission to use tiles

/// Does vdpbf16ps do more per clock than FMA? On AMD's processors that have it (Zen 4 on) twice as
/// much; on Intel's half as much: 87 against 183 GFLOP/s were measured on a Xeon with AMX.
bool has_fast_bf16_dot_products();

}  // namespace diffattn::cpu
