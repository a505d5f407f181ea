# libtorch as the target trireme::libtorch, from its folder: of a pip wheel, an unpacked libtorch.zip, conda, a build of one's own.
# find_package(Torch) makes targets too, but where libtorch has CUDA it ends the configuration unless there is nvcc as well.
# Included by Trireme's own build and by the installed TriremeConfig.cmake.

# Sets TRIREME_LIBTORCH (a folder with include/ and lib/) and TRIREME_LIBTORCH_VERSION to the first libtorch that is at least
# `least`, or the folder to "". Looks where Torch_ROOT, Torch_DIR and CMAKE_PREFIX_PATH point
# (variables, then environment), then at the folders that follow.
function(trireme_find_libtorch least)
  set(folders ${Torch_ROOT} $ENV{Torch_ROOT})
  foreach(share_cmake_torch IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(share_cmake_torch)
      list(APPEND folders "${share_cmake_torch}/../../..")
    endif()
  endforeach()
  string(REPLACE ":" ";" prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH prefixes)
    list(APPEND folders "${prefix}" "${prefix}/../..") # Python's torch.utils.cmake_prefix_path is torch/share/cmake
  endforeach()
  foreach(folder IN LISTS folders ARGN)
    set(headers "${folder}/include/torch/csrc/api/include/torch/version.h" "${folder}/include/torch/headeronly/version.h")
    trireme_libtorch_library("${folder}" torch_cpu library)
    set(version "")
    foreach(header IN LISTS headers)
      if(library AND EXISTS "${header}")
        file(STRINGS "${header}" lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
        list(TRANSFORM lines REPLACE ".* " "")
        list(JOIN lines "." version)
      endif()
    endforeach()
    if(version AND NOT version VERSION_LESS "${least}")
      get_filename_component(folder "${folder}" ABSOLUTE)
      set(TRIREME_LIBTORCH "${folder}" PARENT_SCOPE)
      set(TRIREME_LIBTORCH_VERSION "${version}" PARENT_SCOPE)
      # A wheel brings its own OpenMP. One is enough: find_package(OpenMP) shall take it.
      if(EXISTS "${folder}/lib/libgomp.so.1" AND NOT OpenMP_gomp_LIBRARY)
        set(OpenMP_gomp_LIBRARY "${folder}/lib/libgomp.so.1" PARENT_SCOPE)
      endif()
      return()
    endif()
  endforeach()
  set(TRIREME_LIBTORCH "" PARENT_SCOPE)
endfunction()

# The shared library `name` of the libtorch in `folder`, or "".
function(trireme_libtorch_library folder name out)
  set(${out} "" PARENT_SCOPE)
  foreach(lib IN ITEMS lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
    if(EXISTS "${folder}/${lib}/lib${name}.so")
      set(${out} "${folder}/${lib}/lib${name}.so" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Makes trireme::libtorch from TRIREME_LIBTORCH. With `cuda` programs get its part for CUDA too, and CUDA's runtime where
# find_package(CUDAToolkit) has found it; without it a libtorch that has CUDA computes on the CPU and starts faster.
function(trireme_import_libtorch cuda)
  if(TARGET trireme::libtorch)
    return()
  endif()
  trireme_libtorch_library("${TRIREME_LIBTORCH}" torch_cpu torch_cpu)
  trireme_libtorch_library("${TRIREME_LIBTORCH}" c10 c10)
  set(includes "${TRIREME_LIBTORCH}/include" "${TRIREME_LIBTORCH}/include/torch/csrc/api/include")
  set(libraries "${torch_cpu}" "${c10}")
  if(cuda)
    trireme_libtorch_library("${TRIREME_LIBTORCH}" torch_cuda torch_cuda)
    trireme_libtorch_library("${TRIREME_LIBTORCH}" c10_cuda c10_cuda)
    # Nobody may call it by name, yet CUDA is there only when it is loaded.
    set(libraries "-Wl,--no-as-needed,\"${torch_cuda}\" -Wl,--as-needed" "${c10_cuda}" ${libraries})
    if(TARGET CUDA::cudart)
      list(PREPEND libraries CUDA::cudart)
    endif()
    # Its headers include those of cuBLAS and others, which come with the wheel and not with every toolkit.
    file(GLOB headers "${TRIREME_LIBTORCH}/../nvidia/*/include")
    list(APPEND includes ${headers})
  endif()
  add_library(trireme::libtorch INTERFACE IMPORTED)
  # The definitions are those of libtorch's own targets: its headers look at them.
  set_target_properties(trireme::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${includes}" INTERFACE_LINK_LIBRARIES "${libraries}"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE")
endfunction()
