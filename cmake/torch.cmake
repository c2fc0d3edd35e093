# SPDX-License-Identifier: Apache-2.0
# LibTorch from the torch wheel of DIFFATTN_PYTHON, as the target diffattn_torch.
#
# find_package(Torch) is not used: with a CUDA wheel it adds CUDA flags and architectures of its
# own. The wheel's folder has all that is needed: include/ and lib/.
if(NOT DIFFATTN_PYTHON AND SKBUILD)
  set(DIFFATTN_PYTHON ${Python_EXECUTABLE})
endif()
if(NOT DIFFATTN_PYTHON)
  find_program(DIFFATTN_PYTHON_DEFAULT python3 REQUIRED)
  set(DIFFATTN_PYTHON ${DIFFATTN_PYTHON_DEFAULT})
endif()
# pip's isolated builds put torch into another temporary folder each time.
if(NOT EXISTS "${DIFFATTN_TORCH_DIR}" OR SKBUILD OR NOT DIFFATTN_TORCH_PYTHON STREQUAL DIFFATTN_PYTHON)
  execute_process(
    COMMAND ${DIFFATTN_PYTHON} -c
      "import os, torch; print(os.path.dirname(torch.__file__)); print(torch.__version__)"
    OUTPUT_VARIABLE torch_answer ERROR_VARIABLE torch_error RESULT_VARIABLE torch_result
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT torch_result EQUAL 0)
    message(FATAL_ERROR "${DIFFATTN_PYTHON} has no torch; run scripts/setup\n${torch_error}")
  endif()
  string(REPLACE "\n" ";" torch_answer "${torch_answer}")
  list(GET torch_answer 0 torch_dir)
  list(GET torch_answer 1 torch_version)
  set(DIFFATTN_TORCH_DIR ${torch_dir} CACHE INTERNAL "")
  set(DIFFATTN_TORCH_VERSION ${torch_version} CACHE INTERNAL "")
  set(DIFFATTN_TORCH_PYTHON ${DIFFATTN_PYTHON} CACHE INTERNAL "")
endif()
if(DIFFATTN_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "torch ${DIFFATTN_TORCH_VERSION} found, 2.11 or later is needed")
endif()
message(STATUS "torch ${DIFFATTN_TORCH_VERSION}: ${DIFFATTN_TORCH_DIR}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" DIFFATTN_TORCH_MINOR ${DIFFATTN_TORCH_VERSION})

add_library(diffattn_torch INTERFACE)
target_include_directories(diffattn_torch SYSTEM INTERFACE
  ${DIFFATTN_TORCH_DIR}/include
  ${DIFFATTN_TORCH_DIR}/include/torch/csrc/api/include)
# Nothing of ours names a symbol of libtorch.so, but loading it registers torch's operators: the linker
# must not drop it as unneeded. It loads libtorch_cuda.so where there is one. We do not name that one,
# so that a library built with a CUDA torch also loads in a CPU-only torch.
target_link_directories(diffattn_torch INTERFACE ${DIFFATTN_TORCH_DIR}/lib)
set(torch_libraries ${DIFFATTN_TORCH_DIR}/lib/libtorch.so ${DIFFATTN_TORCH_DIR}/lib/libtorch_cpu.so)
# libtorch_cpu.so exports parts of the libstdc++ it was built with (std::filesystem), and whose come
# first are taken: libstdc++ itself stands before it. A compiler without libstdc++.so would put a
# second one into our libraries; two in one process share some symbols and not others, and the first
# number written to a stream crashes. The one that torch loads is named instead.
set(libstdcxx_first -lstdc++)
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so
  OUTPUT_VARIABLE libstdcxx OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT IS_ABSOLUTE "${libstdcxx}")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so.6
    OUTPUT_VARIABLE libstdcxx OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(IS_ABSOLUTE "${libstdcxx}")
    message(STATUS "no libstdc++.so with ${CMAKE_CXX_COMPILER}: linking ${libstdcxx}")
    set(libstdcxx_first ${libstdcxx})
  endif()
endif()
target_link_options(diffattn_torch INTERFACE
  LINKER:--no-as-needed,${libstdcxx_first},${DIFFATTN_TORCH_DIR}/lib/libtorch.so)
target_link_libraries(diffattn_torch INTERFACE ${torch_libraries} ${DIFFATTN_TORCH_DIR}/lib/libc10.so)
# torch ships a newer fmt than Debian's, which shadows it: only header-only use links.
target_compile_definitions(diffattn_torch INTERFACE FMT_HEADER_ONLY=1)

# torch/torch.h takes 20 s to parse. One target precompiles it, with the other slow headers of the
# program, and every target that calls diffattn_use_torch(target) shares the result.
add_library(diffattn_torch_header OBJECT ${PROJECT_SOURCE_DIR}/cmake/torch_header.cpp)
target_link_libraries(diffattn_torch_header PRIVATE diffattn_torch diffattn_warnings)
target_precompile_headers(diffattn_torch_header PRIVATE <torch/torch.h>)
if(DIFFATTN_PROGRAM)
  target_precompile_headers(diffattn_torch_header PRIVATE
    <CLI/CLI.hpp> <fmt/core.h> <nlohmann/json.hpp>)
endif()
set_target_properties(diffattn_torch_header PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(diffattn_torch_header PRIVATE -fPIC)

# The compiler instantiates torch's and CLI11's templates anew in each source, which takes 12 s of
# processor time even for an empty one. Sources of a target share that, so many at a time.
set(DIFFATTN_UNITY_FILES 30 CACHE STRING
  "Sources that are compiled together; 1 makes a change of one source quick to build")

function(diffattn_use_torch target)
  target_link_libraries(${target} PRIVATE diffattn_torch diffattn_warnings)
  target_precompile_headers(${target} REUSE_FROM diffattn_torch_header)
  # GCC reuses a precompiled header only under the same -fPIC: programs would get -fPIE.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON
    UNITY_BUILD_BATCH_SIZE ${DIFFATTN_UNITY_FILES})
endfunction()
