# One target per folder. trireme_library(name SOURCES ... DEPS ... [TORCH]) makes
# trireme::name from the folder it is called in; TORCH where libtorch is used.
# trireme_test(folder SOURCES ... DEPS ... [TORCH]) makes one GoogleTest program of
# which every test case is one ctest entry with a deadline.

include(GNUInstallDirs) # before the first target: they say where their headers will be

add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE -Wall -Wextra)
if(TRIREME_SANITIZE)
  target_compile_options(trireme_flags INTERFACE -fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(trireme_flags INTERFACE -fsanitize=${TRIREME_SANITIZE})
endif()

# libtorch; imported targets count as system headers, so their warnings are not ours.
add_library(trireme_torch INTERFACE)
add_library(trireme::torch ALIAS trireme_torch)
set_target_properties(trireme_torch PROPERTIES EXPORT_NAME torch)
target_link_libraries(trireme_torch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)

# One precompiled header for every torch target that includes <torch/torch.h> somewhere.
file(WRITE "${CMAKE_BINARY_DIR}/pch.cpp" "")
add_library(trireme_pch OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/pch.cpp")
target_link_libraries(trireme_pch PRIVATE trireme_flags trireme_torch)
target_include_directories(trireme_pch PRIVATE "${PROJECT_SOURCE_DIR}")
target_precompile_headers(trireme_pch PRIVATE <torch/torch.h>)

function(trireme_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;HEADERS_ONLY" "" "SOURCES;DEPS;PRIVATE_LINK")
  set(target trireme_${name})
  set(kind PUBLIC)
  if(arg_HEADERS_ONLY)
    add_library(${target} INTERFACE)
    set(kind INTERFACE)
  else()
    add_library(${target} STATIC ${arg_SOURCES})
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:trireme_flags> ${arg_PRIVATE_LINK})
  endif()
  add_library(trireme::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} ${kind} cxx_std_20)
  target_include_directories(${target} ${kind}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  list(TRANSFORM arg_DEPS PREPEND trireme::)
  target_link_libraries(${target} ${kind} ${arg_DEPS})
  if(arg_TORCH)
    target_link_libraries(${target} ${kind} trireme::torch)
    if(NOT arg_HEADERS_ONLY)
      target_precompile_headers(${target} REUSE_FROM trireme_pch)
    endif()
  endif()
  set_property(GLOBAL APPEND PROPERTY TRIREME_LIBRARIES ${target})
endfunction()

function(trireme_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "TIMEOUT;PROCESSORS" "SOURCES;DEPS;LABELS")
  set(target ${name}_test)
  add_executable(${target} ${arg_SOURCES})
  list(TRANSFORM arg_DEPS PREPEND trireme::)
  target_link_libraries(${target} PRIVATE trireme_flags ${arg_DEPS} GTest::gmock GTest::gtest_main)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${target} PRIVATE
    TRIREME_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TRIREME_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(arg_TORCH)
    target_link_libraries(${target} PRIVATE trireme::torch)
    target_precompile_headers(${target} REUSE_FROM trireme_pch)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${name}/"
    PROPERTIES TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS} LABELS "${arg_LABELS}")
endfunction()
