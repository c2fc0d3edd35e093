// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cpu {

/// What this processor has and this system lets us use. Asked once.
bool has_avx2();         // with FMA and F16C
bool has_avx512();       // F, BW, DQ, VL
bool has_avx512_bf16();  // and the above
bool has_amx_bf16();     // and the above; asks the kernel for permission to use tiles

}  // namespace diffattn::cpu
