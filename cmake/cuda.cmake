# SPDX-License-Identifier: Apache-2.0
# The CUDA kernels and their tests. Included when nvcc was found.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)

# One pass of the front end, three outputs: code for sm_80 and sm_90, and PTX that the driver
# compiles for every later GPU. The kernels need nothing beyond compute_80.
set(DIFFATTN_CUDA_ARCHITECTURES "compute_80,sm_80,sm_90" CACHE STRING
  "What the CUDA kernels are compiled for, from compute_80")
set(DIFFATTN_CUDA_FLAGS -O3 -gencode "arch=compute_80,code=[${DIFFATTN_CUDA_ARCHITECTURES}]")
# For kernels that use a little more where it is there (launches that overlap, sums of four floats,
# stores of matrices), a second pass makes the code for sm_90.
string(REPLACE "," ";" older "${DIFFATTN_CUDA_ARCHITECTURES}")
list(REMOVE_ITEM older sm_90)
list(JOIN older "," older)
set(DIFFATTN_CUDA_FLAGS_TWICE -O3)
if(older)
  list(APPEND DIFFATTN_CUDA_FLAGS_TWICE "-gencode=arch=compute_80,code=[${older}]")
endif()
if(DIFFATTN_CUDA_ARCHITECTURES MATCHES "sm_90")
  list(APPEND DIFFATTN_CUDA_FLAGS_TWICE -gencode=arch=compute_90,code=sm_90)
endif()

set(kernels ${PROJECT_SOURCE_DIR}/src/kernels/cuda)
add_library(diffattn_kernels_cuda STATIC
  ${kernels}/backward/backward.cu
  ${kernels}/backward/dlambda.cu
  ${kernels}/backward/dmask.cu
  ${kernels}/backward/rows.cu
  ${kernels}/backward/workspace.cu
  ${kernels}/forward.cu
  ${kernels}/layers/layers.cu
  ${kernels}/map/map.cu
  ${kernels}/simt/backward.cu
  ${kernels}/simt/forward.cu
  ${kernels}/sm80/backward/instances/d128_v128.cu
  ${kernels}/sm80/backward/instances/d128_v256.cu
  ${kernels}/sm80/backward/instances/d32_v64.cu
  ${kernels}/sm80/backward/instances/d64_v64.cu
  ${kernels}/sm80/backward/instances/d96_v192.cu
  ${kernels}/sm80/backward/launch.cu
  ${kernels}/sm80/decode/launch.cu
  ${kernels}/sm80/forward/instances/d128_v128.cu
  ${kernels}/sm80/forward/instances/d128_v256.cu
  ${kernels}/sm80/forward/instances/d32_v64.cu
  ${kernels}/sm80/forward/instances/d64_v128.cu
  ${kernels}/sm80/forward/instances/d64_v64.cu
  ${kernels}/sm80/forward/instances/d96_v192.cu
  ${kernels}/sm80/forward/launch.cu
  ${kernels}/stats/backward.cu
  ${kernels}/stats/dmask.cu
  ${kernels}/stats/gradients.cu
  ${kernels}/stats/stats.cu
  ${kernels}/takes.cu
  ${kernels}/tf32/forward.cu)
add_library(diffattn::kernels_cuda ALIAS diffattn_kernels_cuda)
set_target_properties(diffattn_kernels_cuda PROPERTIES CUDA_ARCHITECTURES OFF)
target_include_directories(diffattn_kernels_cuda PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(diffattn_kernels_cuda PRIVATE ${DIFFATTN_CUDA_FLAGS} -Xptxas=-v)
target_link_libraries(diffattn_kernels_cuda PUBLIC diffattn_kernels PRIVATE CUDA::cudart_static)

add_library(diffattn_kernels_twice OBJECT
  ${kernels}/sm80/backward/instances/d64_v128.cu
  ${kernels}/sm80/decode/combine.cu
  ${kernels}/sm80/decode/instances/d128_v128.cu
  ${kernels}/sm80/decode/instances/d128_v256.cu
  ${kernels}/sm80/decode/instances/d64_v128.cu
  ${kernels}/sm80/decode/instances/d64_v64.cu)
set_target_properties(diffattn_kernels_twice PROPERTIES CUDA_ARCHITECTURES OFF
  POSITION_INDEPENDENT_CODE ON)
target_include_directories(diffattn_kernels_twice PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${PROJECT_SOURCE_DIR}/include)
target_compile_options(diffattn_kernels_twice PRIVATE ${DIFFATTN_CUDA_FLAGS_TWICE} -Xptxas=-v)
target_sources(diffattn_kernels_cuda PRIVATE $<TARGET_OBJECTS:diffattn_kernels_twice>)

# Kernels whose blocks take more shared memory than any GPU before Hopper has: no code for those.
add_library(diffattn_kernels_large_blocks OBJECT
  ${kernels}/tf32/backward.cu
  ${kernels}/tf32/wide_backward.cu)
set_target_properties(diffattn_kernels_large_blocks PROPERTIES CUDA_ARCHITECTURES OFF
  POSITION_INDEPENDENT_CODE ON)
target_include_directories(diffattn_kernels_large_blocks PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${PROJECT_SOURCE_DIR}/include)
target_compile_options(diffattn_kernels_large_blocks PRIVATE -O3
  "-gencode=arch=compute_90,code=[compute_90,sm_90]" -Xptxas=-v)
target_sources(diffattn_kernels_cuda PRIVATE $<TARGET_OBJECTS:diffattn_kernels_large_blocks>)

# Hopper's own instructions: code for sm_90a alone, chosen at run time.
add_library(diffattn_kernels_sm90 OBJECT
  ${kernels}/sm90/backward/finish.cu
  ${kernels}/sm90/backward/instances/d128_v128.cu
  ${kernels}/sm90/backward/instances/d128_v256.cu
  ${kernels}/sm90/backward/instances/d64_v128.cu
  ${kernels}/sm90/backward/instances/d64_v64.cu
  ${kernels}/sm90/backward/launch.cu
  ${kernels}/sm90/forward/instances/d128_v128.cu
  ${kernels}/sm90/forward/instances/d128_v256.cu
  ${kernels}/sm90/forward/instances/d64_v128.cu
  ${kernels}/sm90/forward/instances/d64_v64.cu
  ${kernels}/sm90/forward/launch.cu
  ${kernels}/sm90/forward/workspace.cu
  ${kernels}/sm90/mask_biases.cu
  ${kernels}/sm90/mask_words.cu
  ${kernels}/sm90/tensor_map.cu)
set_target_properties(diffattn_kernels_sm90 PROPERTIES CUDA_ARCHITECTURES OFF
  POSITION_INDEPENDENT_CODE ON)
target_include_directories(diffattn_kernels_sm90 PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${PROJECT_SOURCE_DIR}/include)
target_compile_options(diffattn_kernels_sm90 PRIVATE -O3
  -gencode arch=compute_90a,code=sm_90a -Xptxas=-v)
target_sources(diffattn_kernels_cuda PRIVATE $<TARGET_OBJECTS:diffattn_kernels_sm90>)

# What ptxas says of each kernel goes to a report beside the build, for the spill test.
set(DIFFATTN_PTXAS_REPORTS ${PROJECT_BINARY_DIR}/ptxas)
file(MAKE_DIRECTORY ${DIFFATTN_PTXAS_REPORTS})
set_property(TARGET diffattn_kernels_cuda diffattn_kernels_twice diffattn_kernels_large_blocks
  diffattn_kernels_sm90 PROPERTY RULE_LAUNCH_COMPILE
  "${CMAKE_COMMAND} -E env REPORTS=${DIFFATTN_PTXAS_REPORTS} \
sh ${PROJECT_SOURCE_DIR}/tests/kernels/cuda/keep_report.sh")

foreach(bench forward_bench kernels_bench)
  add_executable(cuda_${bench} ${PROJECT_SOURCE_DIR}/benchmarks/cuda/${bench}.cu)
  set_target_properties(cuda_${bench} PROPERTIES CUDA_ARCHITECTURES OFF EXCLUDE_FROM_ALL ON)
  target_compile_options(cuda_${bench} PRIVATE ${DIFFATTN_CUDA_FLAGS})
  target_include_directories(cuda_${bench} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(cuda_${bench} PRIVATE diffattn_kernels_cuda CUDA::cudart_static)
endforeach()

if(DIFFATTN_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
  # The shared kernel tests, with the GPU as one more backend; only its part is registered here.
  set(tests ${PROJECT_SOURCE_DIR}/tests/kernels)
  add_executable(cuda_kernel_tests
    ${tests}/cuda/backend.cpp
    ${tests}/cuda/backward_tiles_test.cpp
    ${tests}/cuda/behaviour_test.cpp
    ${tests}/cuda/large_test.cpp
    ${tests}/cuda/sm90_test.cpp
    ${tests}/cuda/stream_test.cpp
    ${tests}/cuda/widths_test.cpp
    $<TARGET_OBJECTS:kernel_tests_of_all>)
  target_include_directories(cuda_kernel_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(cuda_kernel_tests PRIVATE diffattn_kernels_cuda diffattn_test_support
    GTest::gtest_main CUDA::cudart_static)
  gtest_discover_tests(cuda_kernel_tests TEST_PREFIX cuda. TEST_FILTER "Cuda*:*/cuda_*"
    DISCOVERY_TIMEOUT 60)
  # Once more with the kernels that every GPU has, which Hopper's own would otherwise hide.
  gtest_discover_tests(cuda_kernel_tests TEST_PREFIX cuda80. TEST_FILTER "Cuda*:*/cuda_*16"
    TEST_LIST cuda_kernel_tests_80 DISCOVERY_TIMEOUT 60
    PROPERTIES ENVIRONMENT DIFFATTN_TEST_CAPABILITY=80)
  add_test(NAME cuda.spills COMMAND ${CMAKE_COMMAND} -DREPORTS=${DIFFATTN_PTXAS_REPORTS}
    -P ${tests}/cuda/check_spills.cmake)
endif()
