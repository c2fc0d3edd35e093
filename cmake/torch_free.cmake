# SPDX-License-Identifier: Apache-2.0
# The libraries that do not need torch. With DIFFATTN_TORCH_FREE=FOLDER they come from that build
# folder, so that `make wheel` compiles them once for all torch versions.
set(torch_free diffattn_kernels diffattn_kernels_cuda diffattn_io diffattn_convert diffattn_data
  diffattn_report)
find_package(Threads REQUIRED)

if(DIFFATTN_TORCH_FREE)
  include(${DIFFATTN_TORCH_FREE}/torch_free_targets.cmake)
  foreach(name ${torch_free})
    if(TARGET built::${name})
      add_library(${name} ALIAS built::${name})
    endif()
  endforeach()
  return()
endif()

add_subdirectory(src/kernels)
if(DIFFATTN_PROGRAM)
  add_subdirectory(src/io)
  add_subdirectory(src/convert)
  add_subdirectory(src/data)
  add_subdirectory(src/analysis)
endif()
if(DIFFATTN_HAS_CUDA)
  add_subdirectory(src/kernels/cuda)
  add_subdirectory(benchmarks/cuda)
endif()

set(exported diffattn_warnings)
foreach(name ${torch_free})
  if(TARGET ${name})
    list(APPEND exported ${name})
  endif()
endforeach()
add_custom_target(torch_free DEPENDS ${exported})
export(TARGETS ${exported} NAMESPACE built:: FILE ${PROJECT_BINARY_DIR}/torch_free_targets.cmake)
