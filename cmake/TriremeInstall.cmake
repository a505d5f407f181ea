# cmake --install: libraries, headers, both programs, and find_package(Trireme). It builds nothing: the target `installed` does, and ./quickstart builds it.
include(CMakePackageConfigHelpers)

get_property(trireme_libraries GLOBAL PROPERTY TRIREME_LIBRARIES)
get_property(trireme_modules GLOBAL PROPERTY TRIREME_MODULES)
add_custom_target(installed)
add_dependencies(installed ${trireme_libraries} ${trireme_modules} trireme trireme-rank)
install(TARGETS ${trireme_libraries} trireme_torch EXPORT TriremeTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Installed programs find libtorch where it was when they were linked, as those in the build do. INSTALL_RPATH_USE_LINK_PATH would
# leave out a .venv inside of the project.
set_target_properties(trireme-rank PROPERTIES INSTALL_RPATH "${TRIREME_LIBTORCH}/lib")
install(TARGETS trireme trireme-rank RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(NOT TRIREME_EXTENSIONS)
  set(left_out PATTERN "extensions" EXCLUDE PATTERN "horovod.h" EXCLUDE)
endif()
install(DIRECTORY trireme/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trireme FILES_MATCHING PATTERN "*.h" PATTERN "declarations" EXCLUDE PATTERN "add_commands.h" EXCLUDE ${left_out})
install(EXPORT TriremeTargets NAMESPACE trireme:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
# Not at the top of the build: with its bin/ on the PATH, find_package() would look there.
configure_package_config_file(cmake/TriremeConfig.cmake.in "${PROJECT_BINARY_DIR}/package/TriremeConfig.cmake"
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/TriremeConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/package/TriremeConfig.cmake" "${PROJECT_BINARY_DIR}/package/TriremeConfigVersion.cmake" cmake/TriremeTorch.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
