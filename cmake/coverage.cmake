# SPDX-License-Identifier: Apache-2.0
# Counts the executed lines of these layers for tools/coverage.py. Kernels and operators have no
# counters: their inner loops would run for hours.
option(DIFFATTN_COVERAGE "Count executed lines with gcov" OFF)
if(DIFFATTN_COVERAGE)
  foreach(target diffattn_io diffattn_convert diffattn_data diffattn_train diffattn_compare
      diffattn_convert_verb diffattn_verbs diffattn_program)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE --coverage -fprofile-update=atomic)
      target_link_options(${target} PUBLIC --coverage)
    endif()
  endforeach()
endif()
