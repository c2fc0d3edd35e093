# SPDX-License-Identifier: Apache-2.0
# Every target of ours is compiled with these options: link it PRIVATE.
add_library(diffattn_warnings INTERFACE)
target_compile_options(diffattn_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>)

# -O3 buys nothing outside the kernels and costs compile time; kernels that want it say so.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

if(DIFFATTN_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DIFFATTN_SANITIZE}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${DIFFATTN_SANITIZE})
endif()

# The fuzz preset: tests/fuzz is linked with libFuzzer, and no other test is built.
option(DIFFATTN_FUZZ "Build the fuzz targets with clang's libFuzzer" OFF)
if(DIFFATTN_FUZZ)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -gline-tables-only -DNDEBUG")
endif()
