#include <trireme/comm/mpi/mpi_pending.h>

#include <trireme/comm/mpi/patience.h>

#include <exception>

namespace trireme::comm::mpi {

MpiPending::MpiPending(std::shared_ptr<Core> core, Operation operation, std::vector<at::Tensor> memory,
                       std::function<void()> after)
    : core_(std::move(core)),
      operation_(operation),
      memory_(std::move(memory)),
      after_(std::move(after)),
      exceptions_at_start_(std::uncaught_exceptions()) {
  for (const auto& tensor : memory_) {
    bytes_ += static_cast<int64_t>(tensor.nbytes());
  }
  ++core_->under_way;
}

MpiPending::~MpiPending() {
  if (!finished_) {
    try {
      if (std::uncaught_exceptions() > exceptions_at_start_ && !look()) {
        give_up();
      } else {
        MpiPending::wait();
      }
    } catch (...) {
      // No caller receives the error; wait() has kept the memory.
    }
  }
}

/// Polls MPI; true when the operation is over, in success or error.
bool MpiPending::look() {
  if (finished_) {
    return true;
  }
  Runtime& runtime = Runtime::process();
  int over = 0;
  try {
    const std::lock_guard lock(runtime.mutex);
    runtime.check(runtime.functions().test(operation_, &over), "MPI");
  } catch (const Trouble&) {
    error_ = std::current_exception();
    give_up();
    return true;
  }
  if (over != 0) {
    finished_ = true;
    --core_->under_way;
    if (after_) {
      after_();
    }
    memory_.clear();
  }
  return finished_;
}

void MpiPending::give_up() {
  finished_ = true;
  --core_->under_way;
  Runtime::process().give_up(std::move(memory_));
}

void MpiPending::wait() {
  const auto deadline = std::chrono::steady_clock::now() + core_->timeout;
  Patience patience(bytes_, core_->spins);
  while (!look()) {
    if (core_->interrupted) {
      error_ = std::make_exception_ptr(Trouble(Trouble::Kind::interrupted, "interrupted"));
      give_up();
    } else if (std::chrono::steady_clock::now() >= deadline) {
      error_ = std::make_exception_ptr(Trouble(Trouble::Kind::deadline, "not done in time"));
      give_up();
    } else {
      patience.pause();
    }
  }
  if (error_) {
    std::rethrow_exception(error_);
  }
}

bool MpiPending::done() {
  return look() || core_->interrupted;
}

} // namespace trireme::comm::mpi
