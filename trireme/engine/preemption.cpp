#include <trireme/engine/preemption.h>

#include <trireme/base/error.h>

#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace trireme::engine {
namespace {

constexpr std::array<int, 2> kSignals = {SIGTERM, SIGUSR1};
// timeout(1) and some batch systems signal a process and then its group; that counts as one request.
constexpr int64_t kSameRequestMs = 300;

std::atomic<int> asked_by{0};
std::atomic<int64_t> asked_at{0};
std::atomic<int> made{0};

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// Calls only async-signal-safe functions.
void on_signal(int number) {
  const int error = errno;
  int none = 0;
  if (asked_by.compare_exchange_strong(none, number)) {
    asked_at = now_ms();
  } else if (now_ms() - asked_at > kSameRequestMs) {
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    ::sigaction(number, &plain, nullptr);
    ::raise(number); // takes effect when this handler returns
  }
  errno = error;
}

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

} // namespace

Preemption::Preemption() {
  if (made.fetch_add(1) != 0) {
    made.fetch_sub(1);
    throw Error("engine", "this process has a Preemption already", "Make only one, before initialize().");
  }
  asked_by = 0;
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : kSignals) {
    ::sigaddset(&action.sa_mask, number);
  }
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &action, &before_[i]);
  }
}

Preemption::~Preemption() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  asked_by = 0;
  made.fetch_sub(1);
}

int Preemption::asked() {
  return asked_by;
}

std::string Preemption::reason() {
  switch (asked()) {
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "a signal to another rank";
  }
}

void Preemption::ask() {
  on_signal(SIGTERM);
}

} // namespace trireme::engine
