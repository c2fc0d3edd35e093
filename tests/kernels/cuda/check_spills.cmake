# SPDX-License-Identifier: Apache-2.0
# cmake -DREPORTS=<folder> -P check_spills.cmake: fails when ptxas reported spills in any of the
# folder's *.ptxas files, which the build of the kernels wrote. Compiles nothing.
#
# The matrix kernels live at the limit of their registers. What ptxas spills there are a few
# addresses and sizes; smaller tiles that spill nothing were slower. The limit is the most measured,
# rounded up, so that growth shows.
set(kMatrixKernelBytes 128)
file(GLOB reports ${REPORTS}/*.ptxas)
if(NOT reports)
  message(FATAL_ERROR "no ptxas reports in ${REPORTS}")
endif()
set(kernels 0)
set(spilling "")
foreach(report IN LISTS reports)
  file(STRINGS ${report} lines REGEX "Compiling entry function|bytes stack frame")
  foreach(line IN LISTS lines)
    if(line MATCHES "Compiling entry function '([^']+)' for '([^']+)'")
      set(kernel "${CMAKE_MATCH_1} ${CMAKE_MATCH_2}")
      math(EXPR kernels "${kernels} + 1")
    elseif(line MATCHES "([0-9]+) bytes spill stores")
      set(bytes ${CMAKE_MATCH_1})
      set(allowed 0)
      if(kernel MATCHES "sm80.*(forward|keys|queries|decode)_kernel")
        set(allowed ${kMatrixKernelBytes})
      endif()
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
