# build/libtessera_mpi.so: the plug-in for MPI launches (src/comm/port.h), where MPI is found.  It
# shares no symbols with tessera, and nothing else is linked with MPI.
if(MPI_C_FOUND)
  file(GLOB MPI_PLUGIN_SOURCES CONFIGURE_DEPENDS src/comm/mpi_plugin/*.c)
  add_library(tessera_mpi MODULE ${MPI_PLUGIN_SOURCES})
  # Headers of an MPI are not ours to warn about.
  target_include_directories(tessera_mpi SYSTEM PRIVATE ${MPI_C_INCLUDE_DIRS})
  target_link_libraries(tessera_mpi PRIVATE tess_flags MPI::MPI_C)
  add_dependencies(tessera_libraries tessera_mpi)
  install(TARGETS tessera_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL) # ./demo builds without it
else()
  message(STATUS "MPI is missing: no plug-in for MPI launches")
endif()
