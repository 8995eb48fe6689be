# Installs what find_package(headfit) needs in C++ programs: headers, static library, config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS headfit_core EXPORT headfitTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY cpp/headfit DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(EXPORT headfitTargets NAMESPACE headfit:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headfit)
configure_package_config_file(cmake/headfitConfig.cmake.in headfitConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headfit)
write_basic_package_version_file(headfitConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/Eigen.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/headfitConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/headfitConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headfit)
