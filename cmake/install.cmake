# install: the command, the library, its header, and how others find them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS tessera RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS tessera_shared EXPORT tessera LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/tessera.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# pkg-config --cflags --libs tessera.  The prefix follows from the file's own place, so
# an installed tree can be moved.
file(RELATIVE_PATH PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/tessera.pc.in tessera.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# find_package(tessera), target tessera::tessera.
set(CONFIG_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(EXPORT tessera FILE tesseraConfig.cmake NAMESPACE tessera:: DESTINATION ${CONFIG_FOLDER})
write_basic_package_version_file(tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tesseraConfigVersion.cmake DESTINATION ${CONFIG_FOLDER})
