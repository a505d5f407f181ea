#pragma once

#include <trireme/comm/backends.h>
#include <trireme/comm/mpi/mpi_functions.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::comm::mpi {

/// MPI in this process: the module, the lock around all calls, and its start and end.
class Runtime {
 public:
  static Runtime& process();

  /// True if a module for the mpirun that started this process loads.
  bool available();
  /// Loads the module and starts MPI, once. Errors: InputError when that is impossible.
  void start();
  const Functions& functions() const { return *functions_; }

  /// Rank and size of MPI_COMM_WORLD.
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "Open MPI v4.1.4".
  std::string library() const;

  /// Held around every call of functions().
  std::mutex mutex;

  void group_opened();
  /// MPI ends with the last group if all ranks arrive within `patience` and no operation was given up: MPI_Finalize
  /// waits for all ranks and cannot be interrupted.
  void group_closed(std::chrono::milliseconds patience);

  /// An operation was given up. MPI may still use its memory, which is therefore kept.
  void give_up(std::vector<at::Tensor> memory);
  /// This process will end without MPI_Finalize; mpirun then ends the other ranks.
  void give_up();

  /// Throws Trouble unless `code` is success. With the mutex.
  void check(int code, const char* call) const;

 private:
  bool load(std::string& why);
  void finish(std::chrono::milliseconds patience);

  const Functions* functions_ = nullptr;
  std::string why_not_;
  bool loaded_ = false;
  bool started_ = false;
  bool finished_ = false;
  bool gave_up_ = false;
  int groups_ = 0;
  int rank_ = 0;
  int size_ = 1;
};

} // namespace trireme::comm::mpi
