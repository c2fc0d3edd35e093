# SPDX-License-Identifier: Apache-2.0
# cmake -DREPORTS=<folder> -P check_spills.cmake: reads the folder's *.ptxas files, which the build
# of the kernels wrote. Fails if a kernel spills more registers than allowed, or if ptxas serialized
# its wgmma instructions. Compiles nothing.

# Sets `allowed` to the bytes that a kernel may spill, by its mangled name: 0 except for the kernels
# below. These use all their registers and spill a few addresses and sizes, mostly on rare paths
# (masks, values that are not finite). Tiles that spill nothing were slower
# (benchmarks/results/cuda_kernels_h200.md). Each limit is the most seen for sm_80 and sm_90,
# rounded up, so that the test notices growth.
function(find_allowed kernel)
  set(allowed 0)
  if(kernel MATCHES "sm80.*pair_forward_kernel.*PairConfigILi(64|128)ELi128E")
    set(allowed 16)  # measured: 12, 4
  elseif(kernel MATCHES "sm80.*backward_keys_kernel.*KeysConfigILi(64ELi128|96ELi192|128ELi256)E")
    set(allowed 136)  # 128 or more accumulators per thread: 32, 132, 80
  elseif(kernel MATCHES "sm80.*backward_plain_kernel")
    set(allowed 88)  # 128 accumulators per thread: 84, 48, mostly in tiles on the diagonal
  elseif(kernel MATCHES "sm80.*backward_fused_kernel.*FusedConfigILi64ELi128ELi64E")
    set(allowed 288)  # 128 accumulators and 64 of dq: 280
  elseif(kernel MATCHES "sm80.*backward_fused_kernel.*FusedConfigILi64ELi64ELi64E")
    set(allowed 104)
  elseif(kernel MATCHES "sm80.*backward_queries_kernel.*QueriesConfigILi(96|128)E")
    set(allowed 40)  # measured: 24 for sm_80, 36 for sm_90, which has faster kernels of its own
  elseif(kernel MATCHES "sm80.*decode_kernel.*DecodeConfigILi(64ELi128ELi2|128ELi256ELi1)E")
    set(allowed 176)  # limited by memory bandwidth, not by spills: 52, 176
  elseif(kernel MATCHES "token.*product_kernel.*ProductConfigILi2ELi6E")
    set(allowed 8)  # sm_80 only: 8
  elseif(kernel MATCHES "sm90.*15backward_kernel.*Lb[01]EfEE")
    set(allowed 40)  # float biases and 128 accumulators: 36, 12
  elseif(kernel MATCHES "tf32.*15backward_kernel.*Lb1E")
    set(allowed 40)  # 128 accumulators per thread: 40; 20 in the rerun for non-finite values
  elseif(kernel MATCHES "tf32.*14forward_kernel")
    set(allowed 104)  # only in the rerun for non-finite values: 100, 92
  elseif(kernel MATCHES "4scan1[45](forward|backward)_kernel")
    set(allowed 8)  # sm_80 only: 8, 4
  elseif(kernel MATCHES "repair_.*kernel")
    set(allowed 128)  # the sm80 kernels, which run where the sm90 kernels cannot
  endif()
  set(allowed ${allowed} PARENT_SCOPE)
endfunction()

file(GLOB reports ${REPORTS}/*.ptxas)
if(NOT reports)
  message(FATAL_ERROR "no ptxas reports in ${REPORTS}")
endif()
set(kernels 0)
set(spilling "")
foreach(report IN LISTS reports)
  # ptxas reports serialized wgmma instructions as a potential performance loss.
  file(STRINGS ${report} serialized REGEX "wgmma.*serialized")
  if(serialized)
    string(APPEND spilling "\n  ${report}: ${serialized}")
  endif()
  file(STRINGS ${report} lines REGEX "Compiling entry function|bytes stack frame")
  foreach(line IN LISTS lines)
    if(line MATCHES "Compiling entry function '([^']+)' for '([^']+)'")
      set(kernel "${CMAKE_MATCH_1} ${CMAKE_MATCH_2}")
      math(EXPR kernels "${kernels} + 1")
    elseif(line MATCHES "([0-9]+) bytes spill stores")
      set(bytes ${CMAKE_MATCH_1})
      find_allowed("${kernel}")
      if(bytes GREATER allowed)
        string(APPEND spilling "\n  ${kernel}: ${bytes} bytes, allowed ${allowed}")
      endif()
    endif()
  endforeach()
endforeach()
if(spilling)
  message(FATAL_ERROR "kernels that spill:${spilling}")
endif()
message(STATUS "${kernels} kernels within their limits")
