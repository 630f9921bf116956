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

# The man page and what shells complete: written by the command itself, from its tables.  Not where it
# cannot run here.
if(NOT CMAKE_CROSSCOMPILING)
  set(WRITTEN ${CMAKE_BINARY_DIR}/written)
  foreach(row "${CMAKE_INSTALL_MANDIR}/man1|tessera.1|man"
              "${CMAKE_INSTALL_DATADIR}/bash-completion/completions|tessera|completion,bash"
              "${CMAKE_INSTALL_DATADIR}/zsh/site-functions|_tessera|completion,zsh"
              "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d|tessera.fish|completion,fish")
    string(REGEX MATCH "^([^|]*)[|]([^|]*)[|](.*)$" row "${row}")
    set(folder ${CMAKE_MATCH_1})
    set(name ${CMAKE_MATCH_2})
    string(REPLACE "," " " words "${CMAKE_MATCH_3}")
    install(CODE "
      file(MAKE_DIRECTORY ${WRITTEN})
      execute_process(COMMAND $<TARGET_FILE:tessera> ${words} OUTPUT_FILE ${WRITTEN}/${name} COMMAND_ERROR_IS_FATAL ANY)")
    install(FILES ${WRITTEN}/${name} DESTINATION ${folder})
  endforeach()
endif()
