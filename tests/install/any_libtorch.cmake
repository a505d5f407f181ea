# Configures Trireme with whatever a user may have for a libtorch: of the CPU, and of CUDA where no toolkit fits. The folders have what a wheel
# has, as far as configuring looks at it; their TorchConfig.cmake ends the configuration, as that of a CUDA wheel does without nvcc.
include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

function(make_wheel folder)
  file(WRITE "${folder}/include/torch/csrc/api/include/torch/version.h" "#include <torch/headeronly/version.h>\n")
  file(WRITE "${folder}/include/torch/headeronly/version.h"
       "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 12\n#define TORCH_VERSION_PATCH 1\n#define TORCH_VERSION_ABI_TAG 0\n")
  file(WRITE "${folder}/share/cmake/Torch/TorchConfigVersion.cmake" "set(PACKAGE_VERSION 2.12.1)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
  file(WRITE "${folder}/share/cmake/Torch/TorchConfig.cmake" "message(FATAL_ERROR \"I cannot find the CUDA libraries\")\n")
  file(MAKE_DIRECTORY "${folder}/lib")
  foreach(name IN LISTS ARGN)
    file(WRITE "${folder}/lib/${name}.cpp" "extern const char needed[] = \"libcudart.so.99\";\n")
    run(${CXX} -shared -fPIC "${folder}/lib/${name}.cpp" -o "${folder}/lib/lib${name}.so")
  endforeach()
endfunction()

# Configures into `build`; what was said is in `output`, how it ended in `status`.
function(configure build prefix)
  file(REMOVE_RECURSE "${build}")
  execute_process(COMMAND ${CMAKE_COMMAND} -S "${SOURCE}" -B "${build}" -DTRIREME_DEVELOPER_MODE=OFF "-DCMAKE_PREFIX_PATH=${prefix}" ${ARGN}
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(status "${status}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_status expected)
  if(NOT status EQUAL expected)
    message(FATAL_ERROR "configuring ended with ${status}, not ${expected}:\n${output}")
  endif()
endfunction()

set(folder "${WORK} any libtorch")
file(REMOVE_RECURSE "${folder}")
make_wheel("${folder}/cpu/torch" torch torch_cpu c10)
make_wheel("${folder}/cuda/torch" torch torch_cpu c10 torch_cuda c10_cuda)

configure("${folder}/build" "${folder}/cpu/torch")
expect_status(0)
expect_output("libtorch 2.12.1 at [^\n]*/cpu/torch\n")
expect_output("this libtorch is for the CPU")

configure("${folder}/build" "${folder}/cuda/torch/share/cmake") # as Python's torch.utils.cmake_prefix_path
expect_status(0)
expect_output("libtorch 2.12.1 at [^\n]*/cuda/torch\n")
expect_output("CUDA: libtorch.s alone, no NCCL and no kernels of Trireme.s")

# Sets `count` to the build's files that link libtorch's part for CUDA.
function(count_links_of_cuda)
  file(GLOB_RECURSE links "${folder}/build/link.txt" "${folder}/build/build.ninja")
  list(LENGTH links all)
  if(all EQUAL 0)
    message(FATAL_ERROR "no file tells what is linked")
  endif()
  set(count 0)
  foreach(link IN LISTS links)
    file(STRINGS "${link}" cuda REGEX "libtorch_cuda|libc10_cuda")
    if(cuda)
      math(EXPR count "${count} + 1")
    endif()
  endforeach()
  set(count ${count} PARENT_SCOPE)
endfunction()

count_links_of_cuda()
if(count EQUAL 0)
  message(FATAL_ERROR "no program gets libtorch's part for CUDA")
endif()
configure("${folder}/build" "${folder}/cuda/torch" -DTRIREME_CUDA=OFF)
expect_status(0)
count_links_of_cuda()
if(NOT count EQUAL 0)
  message(FATAL_ERROR "${count} files link what only a card needs, with TRIREME_CUDA=OFF")
endif()

configure("${folder}/build" "${folder}/cuda/torch" -DTRIREME_CUDA=ON)
expect_status(1)
expect_output("TRIREME_CUDA=ON, but")
expect_output("-DTRIREME_CUDA=OFF")

# The toolkit that pip installs beside a wheel is found, and what it lacks is said.
set(toolkit "${folder}/cuda/nvidia/cu99")
file(WRITE "${toolkit}/bin/nvcc" "#!/bin/sh\n")
file(WRITE "${toolkit}/lib/libcudart.so.99" "")
set(ENV{CUDACXX})
set(ENV{CUDAToolkit_ROOT})
configure("${folder}/build" "${folder}/cuda/torch")
expect_status(0)
expect_output("no NCCL and no kernels of Trireme.s; pip's CUDA toolkit lacks two links .cd '[^\n]*/nvidia/cu99' && ln -sfn lib lib64 && ln -sf libcudart.so.99 lib/libcudart.so.")
configure("${folder}/build" "${folder}/cuda/torch" -DTRIREME_CUDA=ON)
expect_status(1)
expect_output("TRIREME_CUDA=ON, but pip's CUDA toolkit lacks two links")

# A transport between parameter servers and workers is no use without them.
configure("${folder}/build" "${folder}/cpu/torch" -DTRIREME_EXTENSIONS=OFF -DTRIREME_GRPC=ON)
expect_status(1)
expect_output("TRIREME_EXTENSIONS=OFF leaves servers out")
