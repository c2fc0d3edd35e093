# SPDX-License-Identifier: Apache-2.0
# The instruction sets that single files of the CPU kernels are compiled for, and nothing else:
# whatever else is in the library must run on every x86-64.
#
# -O3 also in debug builds: inline functions that are not inlined would be shared, under one name,
# with files compiled for less. Contraction is off so that p1 - lambda p2 of equal maps is exactly
# 0; multiply-adds are written out. g++ 12 takes the deliberately undefined values in its own
# AVX-512 headers for mistakes.
set(DIFFATTN_KERNEL_OPTIONS -O3 -ffp-contract=off -Wno-uninitialized -Wno-maybe-uninitialized)
set(DIFFATTN_AVX2_OPTIONS -mavx2 -mfma -mf16c)
set(DIFFATTN_AVX512_OPTIONS ${DIFFATTN_AVX2_OPTIONS} -mavx512f -mavx512bw -mavx512dq -mavx512vl
  -mprefer-vector-width=512)
set(DIFFATTN_AVX512_BF16_OPTIONS ${DIFFATTN_AVX512_OPTIONS} -mavx512bf16)
set(DIFFATTN_AMX_OPTIONS ${DIFFATTN_AVX512_BF16_OPTIONS} -mamx-tile -mamx-bf16)

# diffattn_isa(FILE NAME): compiles FILE for instruction set NAME.
function(diffattn_isa file name)
  set_source_files_properties(${file} PROPERTIES
    COMPILE_OPTIONS "${DIFFATTN_KERNEL_OPTIONS};${DIFFATTN_${name}_OPTIONS}")
endfunction()
