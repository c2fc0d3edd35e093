# SPDX-License-Identifier: Apache-2.0
# `cmake --install build/release --prefix PREFIX`: libraries, headers, the program, and what
# find_package and pkg-config read. The tree may be moved; it needs the torch it was built for. Wheels
# do not use it: they have no symbolic links.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(shared_libraries diffattn diffattn_nn diffattn_infer diffattn_models diffattn_analysis
  diffattn_parallel diffattn_train diffattn_compare)
set(static_libraries diffattn_kernels diffattn_io diffattn_convert diffattn_data diffattn_report)
set(installed "")
foreach(name ${shared_libraries})
  if(TARGET ${name})
    # Before 1.0 every minor version may change the interface.
    set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION}
      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
      INSTALL_RPATH "$ORIGIN;${DIFFATTN_TORCH_DIR}/lib")
    list(APPEND installed ${name})
  endif()
endforeach()
foreach(name ${static_libraries})
  if(TARGET ${name})
    list(APPEND installed ${name})
  endif()
endforeach()
file(RELATIVE_PATH libraries_from_bin
  ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(diffattn_program PROPERTIES
  INSTALL_RPATH "$ORIGIN/${libraries_from_bin};${DIFFATTN_TORCH_DIR}/lib")

install(TARGETS ${installed} diffattn_program
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/diffattn
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_files ${PROJECT_BINARY_DIR}/package)
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/diffattn)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/diffattnConfig.cmake.in
  ${package_files}/diffattnConfig.cmake INSTALL_DESTINATION ${config_folder}
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${package_files}/diffattnConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${package_files}/diffattnConfig.cmake ${package_files}/diffattnConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/src/startup/short_spins.cpp DESTINATION ${config_folder})

file(RELATIVE_PATH DIFFATTN_PC_TO_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" DIFFATTN_PC_TO_PREFIX ${DIFFATTN_PC_TO_PREFIX})
foreach(name diffattn diffattn-train)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${package_files}/${name}.pc @ONLY)
  install(FILES ${package_files}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
