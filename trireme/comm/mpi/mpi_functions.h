#pragma once

#include <trireme/kernels/kernels.h>

#include <cstdint>

/// The part of MPI that Trireme uses, as plain functions.
///
/// Open MPI and MPICH have different binary interfaces, and no program of ours may need either to start. So the
/// few lines that include <mpi.h> (mpi_module.cpp) are a shared module, one per MPI, without libtorch. A
/// process that uses the backend loads the module of the mpirun that started it, and calls it through this
/// table.
namespace trireme::comm::mpi {

/// Increased with every change of this file.
constexpr int kInterfaceVersion = 1;

/// inout[i] = inout[i] op in[i].
using CombineFunction = void (*)(const void* in, void* inout, int64_t count, kernels::Element element,
                                 kernels::Combine combine);

/// A communicator and an operation in progress.
using Communicator = void*;
using Operation = void*;

/// Every function returns an MPI error code, 0 for success, unless noted. Counts are elements for reductions and bytes
/// for the rest, and may exceed an int. One thread at a time may be inside any of them.
struct Functions {
  int version;
  /// "Open MPI v4.1.4, ...".
  const char* (*library)();

  /// Starts MPI for calls from any thread, one at a time, unless the program has done so. `combine` reduces types that
  /// MPI cannot. No single call of MPI gets more than `most` elements. Returns the rank in MPI_COMM_WORLD; `threads` is
  /// 0 if MPI was started without support for calls from any thread.
  int (*start)(CombineFunction combine, int64_t most, int* rank, int* size, int* threads);
  /// Synchronizes all ranks of MPI_COMM_WORLD; when done, they are ready for finish().
  int (*meet)(Operation* operation);
  /// Ends MPI, if start() started it.
  int (*finish)();

  /// Collective over these ranks of MPI_COMM_WORLD, in this order.
  int (*open)(const int* ranks, int count, int tag, Communicator* communicator);
  int (*close)(Communicator communicator);

  int (*all_reduce)(Communicator communicator, void* data, int64_t count, kernels::Element element,
                    kernels::Combine combine, Operation* operation);
  /// `in` holds `count` elements for each rank and is not `out`.
  int (*reduce_scatter)(Communicator communicator, const void* in, void* out, int64_t count, kernels::Element element,
                        kernels::Combine combine, Operation* operation);
  /// `bytes` come from each rank; `in` may be this rank's slice of `out`.
  int (*all_gather)(Communicator communicator, const void* in, void* out, int64_t bytes, Operation* operation);
  int (*broadcast)(Communicator communicator, void* data, int64_t bytes, int root, Operation* operation);
  /// `bytes` go to each rank.
  int (*all_to_all)(Communicator communicator, const void* in, void* out, int64_t bytes, Operation* operation);
  int (*send)(Communicator communicator, const void* data, int64_t bytes, int to, int tag, Operation* operation);
  int (*recv)(Communicator communicator, void* data, int64_t bytes, int from, int tag, Operation* operation);
  int (*barrier)(Communicator communicator, Operation* operation);

  /// Makes progress. After it sets `done` or returns an error, the operation is invalid.
  int (*test)(Operation operation, int* done);
  int64_t (*largest_tag)();
  /// Writes the meaning of an error code.
  void (*describe)(int code, char* text, int capacity);
};

/// The one symbol of the module.
constexpr const char* kEntryPoint = "trireme_mpi_functions";
using EntryPoint = const Functions* (*)();

} // namespace trireme::comm::mpi
