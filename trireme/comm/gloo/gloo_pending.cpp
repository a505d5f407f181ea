#include <trireme/comm/gloo/gloo_pending.h>

#include <trireme/comm/c10d_work.h>

#include <ATen/core/ivalue.h>

#include <thread>
#include <utility>

namespace trireme::comm {
namespace {

constexpr std::chrono::seconds kPatienceAfterBreak{5};

} // namespace

void GlooShared::interrupt_locked() {
  interrupted = true;
  for (auto* message : waiting) {
    message->abort_locked();
  }
  changed.notify_all();
}

void GlooShared::interrupt() {
  const std::lock_guard lock(mutex);
  interrupt_locked();
}

void GlooShared::wedge() {
  const std::lock_guard lock(mutex);
  wedged = true;
  break_context = nullptr;
  interrupt_locked();
}

void GlooShared::break_connections(std::unique_lock<std::mutex>& lock) {
  if (break_context) {
    breaking_ = true;
    std::thread([self = shared_from_this(), call = std::exchange(break_context, nullptr)] {
      call();
      const std::lock_guard done(self->mutex);
      self->breaking_ = false;
      self->changed.notify_all();
    }).detach();
  }
  changed.wait(lock, [this] { return !breaking_ || wedged; });
}

GlooCollective::GlooCollective(const c10::intrusive_ptr<c10d::Work>& work, std::shared_ptr<GlooShared> shared,
                               Deadline deadline, std::function<void()> after)
    : shared_(std::move(shared)),
      outcome_(std::make_shared<Outcome>()),
      deadline_(deadline),
      exceptions_at_start_(std::uncaught_exceptions()) {
  work->getFuture()->addCallback(
      [shared = shared_, outcome = outcome_, after = std::move(after)](c10::ivalue::Future& future) {
        std::exception_ptr error = future.hasError() ? future.exception_ptr() : nullptr;
        if (!error && after) {
          try {
            after();
          } catch (...) {
            error = std::current_exception();
          }
        }
        const std::lock_guard lock(shared->mutex);
        outcome->done = true;
        outcome->error = error;
        shared->changed.notify_all();
      });
}

GlooCollective::~GlooCollective() {
  // The tensors belong to the caller after this, so gloo must not use them any more.
  std::unique_lock lock(shared_->mutex);
  const auto over = [&] { return outcome_->done || shared_->wedged; };
  if (over()) {
    return;
  }
  const bool in_trouble = gave_up_ || shared_->interrupted || std::uncaught_exceptions() > exceptions_at_start_;
  if (in_trouble || !shared_->changed.wait_until(lock, deadline_, over)) {
    shared_->break_connections(lock);
    shared_->changed.wait_for(lock, kPatienceAfterBreak, over);
  }
}

void GlooCollective::wait() {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_until(lock, deadline_, [&] { return outcome_->done || shared_->interrupted; });
  if (outcome_->done) {
    if (outcome_->error) {
      throw trouble_of(outcome_->error);
    }
    return;
  }
  gave_up_ = true;
  if (shared_->interrupted) {
    throw Trouble(Trouble::Kind::interrupted, "interrupted");
  }
  throw Trouble(Trouble::Kind::deadline, "not done in time");
}

bool GlooCollective::done() {
  const std::lock_guard lock(shared_->mutex);
  return outcome_->done || shared_->interrupted;
}

GlooMessage::GlooMessage(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<GlooShared> shared,
                         std::chrono::milliseconds timeout)
    : work_(std::move(work)),
      shared_(std::move(shared)),
      timeout_(timeout),
      exceptions_at_start_(std::uncaught_exceptions()) {}

GlooMessage::~GlooMessage() {
  try {
    const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
    if (!finished_ && unwinding) {
      std::unique_lock lock(shared_->mutex);
      shared_->break_connections(lock);
    }
    wait();
  } catch (...) {
    // No caller receives the error; gloo has released the tensor, which is enough.
  }
}

void GlooMessage::abort_locked() {
  try {
    work_->abort();
  } catch (...) {
  }
}

void GlooMessage::block() {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->interrupted) {
      throw Trouble(Trouble::Kind::interrupted, "interrupted");
    }
    shared_->waiting.insert(this);
  }
  std::exception_ptr error;
  bool complete = false;
  try {
    complete = work_->wait(timeout_);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->waiting.erase(this);
  if (error) {
    throw trouble_of(error);
  }
  if (!complete) {
    throw Trouble(Trouble::Kind::interrupted, "interrupted");
  }
}

void GlooMessage::wait() {
  if (waiter_.joinable()) {
    waiter_.join();
  }
  if (!finished_) {
    try {
      block();
    } catch (...) {
      error_ = std::current_exception();
    }
    finished_ = true;
    const std::lock_guard lock(shared_->mutex);
    if (shared_->wedged) {
      work_.release(); // its destructor would wait for a lock that is never released
    }
  }
  if (error_) {
    std::rethrow_exception(error_);
  }
}

bool GlooMessage::done() {
  const std::lock_guard lock(shared_->mutex);
  if (!finished_ && !waiter_.joinable()) {
    waiter_ = std::thread([this] {
      std::exception_ptr error;
      try {
        block();
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(shared_->mutex);
      error_ = error;
      finished_ = true;
    });
  }
  return finished_;
}

} // namespace trireme::comm
