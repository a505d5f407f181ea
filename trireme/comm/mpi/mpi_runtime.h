#pragma once

#include <trireme/comm/backends.h>
#include <trireme/comm/mpi/mpi_functions.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::comm::mpi {

/// MPI in this process: the module, the one lock that all calls need, and when it begins and ends.
class Runtime {
 public:
  static Runtime& process();

  /// A module for the mpirun that started this process is there and loads.
  bool available();
  /// Loads the module and starts MPI, once. Errors: InputError when that is impossible.
  void start();
  const Functions& functions() const {
    return *functions_;
  }

  /// Rank and size of MPI_COMM_WORLD.
  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  /// "Open MPI v4.1.4".
  std::string library() const;

  /// Held around every call of functions().
  std::mutex mutex;

  void group_opened();
  /// With the last group MPI ends too, when all ranks come to it within `patience` and no operation was given up:
  /// MPI_Finalize waits for everybody and could not be stopped.
  void group_closed(std::chrono::milliseconds patience);

  /// An operation will not be waited for any more. MPI cannot be told to leave its memory alone, so that stays.
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
