# The module of the transport grpc://, lib/trireme/libtrireme_grpc.so: loaded by processes that ask for it; nothing else needs gRPC
# (trireme/extensions/server/rpc/grpc/grpc_functions.h). It needs neither protobuf nor its compiler.
set(TRIREME_GRPC "AUTO" CACHE STRING "Build the module of the transport grpc://: AUTO (where gRPC is installed), ON (or fail) or OFF")

function(trireme_grpc_module)
  # For workers in other languages, whether this build has the transport or not.
  install(FILES "${PROJECT_SOURCE_DIR}/trireme/extensions/server/rpc/grpc/parameter_server.proto" DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme)
  if(TRIREME_GRPC STREQUAL "OFF")
    return()
  endif()
  find_path(GRPCPP_INCLUDE_DIR grpcpp/generic/generic_stub.h)
  find_library(GRPCPP_LIBRARY grpc++)
  find_library(GRPC_LIBRARY grpc)
  find_library(GPR_LIBRARY gpr)
  mark_as_advanced(GRPCPP_INCLUDE_DIR GRPCPP_LIBRARY GRPC_LIBRARY GPR_LIBRARY)
  if(NOT GRPCPP_INCLUDE_DIR OR NOT GRPCPP_LIBRARY OR NOT GRPC_LIBRARY OR NOT GPR_LIBRARY)
    if(TRIREME_GRPC STREQUAL "AUTO")
      message(STATUS "gRPC transport: none (no libgrpc++ with headers)")
      return()
    endif()
    message(FATAL_ERROR "TRIREME_GRPC=ON, but libgrpc++ with headers was not found.\n"
            "On Debian or Ubuntu: apt-get install libgrpc++-dev")
  endif()
  set(folder "${PROJECT_SOURCE_DIR}/trireme/extensions/server/rpc/grpc")
  add_library(trireme_grpc MODULE "${folder}/frames.cpp" "${folder}/grpc_module.cpp" "${folder}/module_client.cpp" "${folder}/module_connect.cpp" "${folder}/module_door.cpp"
              "${folder}/module_options.cpp" "${folder}/module_server.cpp")
  target_include_directories(trireme_grpc PRIVATE "${PROJECT_SOURCE_DIR}")
  target_include_directories(trireme_grpc SYSTEM PRIVATE "${GRPCPP_INCLUDE_DIR}")
  target_link_libraries(trireme_grpc PRIVATE trireme_flags trireme::store trireme::base OpenSSL::Crypto Threads::Threads
                        ${GRPCPP_LIBRARY} ${GRPC_LIBRARY} ${GPR_LIBRARY})
  # Only the entry point leaves the module, and what is inside is used by it, not what a program has under the same name.
  target_link_options(trireme_grpc PRIVATE -Wl,--as-needed -Wl,-Bsymbolic "-Wl,--version-script=${folder}/module.map")
  set_target_properties(trireme_grpc PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib/trireme" CXX_VISIBILITY_PRESET hidden
                        LINK_DEPENDS "${folder}/module.map")
  target_compile_features(trireme_grpc PRIVATE cxx_std_20)
  install(TARGETS trireme_grpc LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/trireme)
  set_property(GLOBAL APPEND PROPERTY TRIREME_MODULES trireme_grpc)
  message(STATUS "gRPC transport: ${GRPCPP_LIBRARY}")
endfunction()
