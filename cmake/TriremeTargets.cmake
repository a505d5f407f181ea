# One target per folder. trireme_library(name SOURCES ... DEPS ... [TORCH | TORCH_NN] [TORCH_FREE ...]) makes trireme::name from
# the folder it is called in; TORCH where it uses tensors, TORCH_NN where modules or autograd, TORCH_FREE for sources of it that do without.
# trireme_test(folder SOURCES ... DEPS ... [TORCH]) makes one GoogleTest program of which every suite is an entry of ctest and every
# test a process with a deadline (tests/support/main.cpp). SEPARATE: sources that use the same names are not compiled together.
# PROCESSORS: ./test gives ctest two for each core, so 2 is a suite that keeps a core busy; those that mostly wait take one.
# THREADS: libtorch uses all cores; elsewhere one, because threads of several processes wait for each other in loops that use the cores.
#
# What makes a build quick: libtorch's headers cost half a minute, so targets that use them share one precompiled header, and
# unity builds (CMAKE_UNITY_BUILD, on in the release preset) compile the sources of a target together. The dev preset compiles
# every source by itself, so that a change costs little.

include(GNUInstallDirs) # before the first target: they say where their headers will be

add_library(trireme_flags INTERFACE)
# A release is -O1 but for targets whose property TRIREME_OPTIMIZE says more (kernels 3, data_files 2): the time is spent there and
# in libtorch. Elsewhere -O2 made the build a third longer and nothing that could be measured faster. Not for targets with a
# precompiled header: GCC takes one of another level and may crash.
set(level "$<TARGET_PROPERTY:TRIREME_OPTIMIZE>")
target_compile_options(trireme_flags INTERFACE -Wall -Wextra $<$<CONFIG:Release>:-O$<IF:$<STREQUAL:${level},>,1,${level}>>)
# GCC looks for garbage each time that its memory has doubled, beginning at a few megabytes, and walks through the precompiled
# header then: a tenth of the time of an object. Nearly none needs the 2 GB from which it does so now.
target_compile_options(trireme_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>)
if(TRIREME_SANITIZE)
  target_compile_options(trireme_flags INTERFACE -fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(trireme_flags INTERFACE -fsanitize=${TRIREME_SANITIZE})
endif()

# libtorch; imported targets count as system headers, so their warnings are not ours.
add_library(trireme_torch INTERFACE)
add_library(trireme::torch ALIAS trireme_torch)
set_target_properties(trireme_torch PROPERTIES EXPORT_NAME torch)
target_link_libraries(trireme_torch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)

# The precompiled headers of targets that use libtorch: TORCH for tensors alone, TORCH_NN for modules and autograd. Neither has
# <torch/torch.h>: what it adds (data, optim, jit) doubles the price of an object, and few sources need it.
if(NOT EXISTS "${CMAKE_BINARY_DIR}/pch.cpp") # a new one would be compiled again
  file(WRITE "${CMAKE_BINARY_DIR}/pch.cpp" "")
endif()
function(trireme_precompiled name)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/pch.cpp")
  target_link_libraries(${name} PRIVATE trireme_flags trireme_torch nlohmann_json::nlohmann_json)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
trireme_precompiled(trireme_pch_tensor <ATen/core/Tensor.h> <ATen/Context.h> <nlohmann/json.hpp> <algorithm> <functional> <memory> <optional> <string> <unordered_map> <vector>)
trireme_precompiled(trireme_pch
  <torch/autograd.h> <torch/csrc/autograd/engine.h> <torch/utils.h>
  <torch/nn/modules/container/modulelist.h> <torch/nn/modules/container/sequential.h>
  <torch/nn/modules/embedding.h> <torch/nn/modules/linear.h> <torch/nn/modules/normalization.h>
  <nlohmann/json.hpp>)

function(trireme_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;TORCH_NN;HEADERS_ONLY" "" "SOURCES;TORCH_FREE;DEPS;PRIVATE_LINK")
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
  if(arg_TORCH OR arg_TORCH_NN)
    target_link_libraries(${target} ${kind} trireme::torch)
  endif()
  if(arg_TORCH_NN)
    target_precompile_headers(${target} REUSE_FROM trireme_pch)
  elseif(arg_TORCH AND NOT arg_HEADERS_ONLY)
    target_precompile_headers(${target} REUSE_FROM trireme_pch_tensor)
  endif()
  if(arg_TORCH_FREE)
    add_library(${target}_torch_free OBJECT ${arg_TORCH_FREE})
    target_link_libraries(${target}_torch_free PRIVATE trireme_flags ${arg_PRIVATE_LINK} trireme::base)
    target_include_directories(${target}_torch_free PRIVATE "${PROJECT_SOURCE_DIR}")
    target_compile_features(${target}_torch_free PRIVATE cxx_std_20)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_torch_free>)
  endif()
  set_property(GLOBAL APPEND PROPERTY TRIREME_LIBRARIES ${target})
endfunction()

function(trireme_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;SEPARATE;THREADS" "TIMEOUT;PROCESSORS" "SOURCES;DEPS")
  set(target ${name}_test)
  add_executable(${target} ${arg_SOURCES})
  list(TRANSFORM arg_DEPS PREPEND trireme::)
  target_link_libraries(${target} PRIVATE trireme_flags ${arg_DEPS} trireme::test_main)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  if(arg_TORCH)
    target_link_libraries(${target} PRIVATE trireme::torch)
    target_precompile_headers(${target} REUSE_FROM trireme_pch)
  endif()
  if(arg_SEPARATE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300) # a deadline for what hangs, also on a busy machine
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  set(threads "ENVIRONMENT_MODIFICATION OMP_NUM_THREADS=set:1")
  if(arg_THREADS)
    set(threads "")
  endif()
  # When ctest starts it asks programs that are new for their suites (TriremeTestSuites.cmake).
  set(suites "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  file(GENERATE OUTPUT "${suites}_include.cmake" CONTENT "set(program \"$<TARGET_FILE:${target}>\")
set(name ${name})
set(list \"${suites}_suites.cmake\")
set(properties TIMEOUT 3600 PROCESSORS ${arg_PROCESSORS} ENVIRONMENT TRIREME_TEST_DEADLINE=${arg_TIMEOUT} ${threads})
include(\"${PROJECT_SOURCE_DIR}/cmake/TriremeTestSuites.cmake\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${suites}_include.cmake")
endfunction()
