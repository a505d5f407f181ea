# The installed programs as a user calls them: by name, from another folder, with nothing set for them.
include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")
set(here "${WORK}/elsewhere")
file(REMOVE_RECURSE "${here}")
file(MAKE_DIRECTORY "${here}")
set(ENV{PATH} "${WORK}/a prefix/bin:$ENV{PATH}")
unset(ENV{LD_LIBRARY_PATH})

run(trireme doctor)
expect_output("ok  libtorch")

string(REPEAT "All happy families are alike; every unhappy family is unhappy in its own way.\n" 100 text)
file(WRITE "${here}/text.txt" "${text}")
file(WRITE "${here}/run.json" [[{
  "model": {"type": "gpt", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": 16, "vocab_size": 256},
  "data": {"type": "text", "train": "text.txt"},
  "training": {"steps": 2},
  "engine": {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
}]])
run(trireme train "${here}/run.json" -n 2 --out "${here}/run")
run(trireme generate "${here}/run" --prompt "All happy" --tokens 5)
expect_output("All happy")

# The module that is loaded is the installed one, not the build's.
if(MPI_MODULES)
  run(${CMAKE_COMMAND} -E env OMPI_COMM_WORLD_SIZE=1 LD_DEBUG=files trireme-rank doctor)
  expect_output("backend mpi +[^n]")
  string(FIND "${output}" "${WORK}/a prefix/bin/../" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "the installed MPI module is not the one that was loaded:\n${output}")
  endif()
endif()

# Workers in other languages find the protocol; the transport's module is there where it was built.
if(EXTENSIONS AND NOT EXISTS "${WORK}/a prefix/share/trireme/parameter_server.proto")
  message(FATAL_ERROR "parameter_server.proto is not installed")
endif()
if(GRPC_MODULE)
  run(${CMAKE_COMMAND} -E env LD_DEBUG=files trireme-rank doctor)
  expect_output("transport grpc +gRPC [0-9]")
  expect_output("a prefix/bin/../[^\n]*libtrireme_grpc.so")
endif()
