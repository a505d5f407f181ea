# Finds what Trireme stands on and says in three lines what to type when it is missing.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# The same flag for libraries and programs (CMake's own variable says -fPIE for the latter), or they could not
# share the precompiled header.
add_compile_options(-fPIC)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these two; without them ccache only passes through.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE_PROGRAM})
endif()

find_package(Threads REQUIRED)
find_package(nlohmann_json 3.9 QUIET)
find_package(CLI11 2.1 QUIET)
find_path(XXHASH_INCLUDE_DIR xxhash.h)
find_library(XXHASH_LIBRARY xxhash)
find_package(ZLIB QUIET)
find_package(OpenSSL 1.1 QUIET COMPONENTS Crypto)
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)
if(NOT nlohmann_json_FOUND OR NOT CLI11_FOUND OR NOT XXHASH_INCLUDE_DIR OR NOT XXHASH_LIBRARY OR NOT ZLIB_FOUND OR NOT OPENSSL_FOUND
   OR NOT PCRE2_INCLUDE_DIR OR NOT PCRE2_LIBRARY OR NOT UTF8PROC_INCLUDE_DIR OR NOT UTF8PROC_LIBRARY)
  message(FATAL_ERROR "Trireme needs nlohmann-json, CLI11, xxHash, zlib, OpenSSL, PCRE2 and utf8proc.\n"
          "On Debian or Ubuntu: apt-get install nlohmann-json3-dev libcli11-dev libxxhash-dev zlib1g-dev libssl-dev libpcre2-dev libutf8proc-dev\n"
          "Or run ./quickstart, which installs everything.")
endif()

# libtorch: what was asked for first, then the project's .venv, then any python3 that has torch, then the system's.
include(TriremeTorch)
set(places "")
foreach(python IN ITEMS "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
  execute_process(
    COMMAND ${python} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE place OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    list(APPEND places "${place}")
  endif()
endforeach()
set(TRIREME_LEAST_LIBTORCH 2.11)
trireme_find_libtorch(${TRIREME_LEAST_LIBTORCH} ${places} ${CMAKE_SYSTEM_PREFIX_PATH})
if(NOT TRIREME_LIBTORCH)
  message(FATAL_ERROR "libtorch ${TRIREME_LEAST_LIBTORCH} or newer was not found.\n"
          "Type: python3 -m venv .venv && .venv/bin/pip install torch==2.13.0   (or run ./quickstart)\n"
          "Or point at yours: cmake -DCMAKE_PREFIX_PATH=/path/to/libtorch ...")
endif()
message(STATUS "libtorch ${TRIREME_LIBTORCH_VERSION} at ${TRIREME_LIBTORCH}")
include(TriremeCuda)
trireme_import_libtorch(${TRIREME_LINK_CUDA})
set(TORCH_LIBRARIES trireme::libtorch)
find_package(OpenMP REQUIRED COMPONENTS CXX) # at::parallel_for is inline OpenMP
