#pragma once

#include <trireme/comm/mpi/mpi_runtime.h>
#include <trireme/comm/work.h>

#include <atomic>
#include <functional>
#include <memory>

namespace trireme::comm::mpi {

/// One group over MPI; lives until its backend and the last of its operations are gone.
struct Core {
  Core(std::chrono::milliseconds timeout, bool spins) : timeout(timeout), spins(spins) {}
  Communicator communicator = nullptr;
  const std::chrono::milliseconds timeout;
  /// Whether every member on this host has a core.
  const bool spins;
  std::atomic<bool> interrupted{false};
  std::atomic<int> under_way{0};
};

/// An operation of MPI in progress. Its time counts from the first wait, and the waiting thread drives it: MPI works
/// inside its calls only.
class MpiPending : public Pending {
 public:
  /// `memory` is read and written by MPI; `after` completes the result after MPI is done, on the waiting thread.
  MpiPending(std::shared_ptr<Core> core, Operation operation, std::vector<at::Tensor> memory,
             std::function<void()> after);
  ~MpiPending() override;
  void wait() override;
  bool done() override;

 private:
  bool look();
  void give_up();

  std::shared_ptr<Core> core_;
  Operation operation_;
  std::vector<at::Tensor> memory_;
  std::function<void()> after_;
  std::exception_ptr error_;
  int64_t bytes_ = 0;
  int exceptions_at_start_;
  bool finished_ = false;
};

} // namespace trireme::comm::mpi
