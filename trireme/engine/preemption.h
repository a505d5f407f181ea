#pragma once

#include <signal.h>

#include <array>
#include <string>

namespace trireme::engine {

/// Turns SIGTERM and SIGUSR1 into "finish the step, save, exit" during its lifetime. Make one before initialize():
///
///     engine::Preemption preemption;
///     ...
///     while (engine->global_steps() < steps) {
///       engine->train_batch();
///       if (engine->stop_agreed()) {            // all ranks, after the same step
///         engine->save_checkpoint("checkpoints");
///         return 0;
///       }
///     }
///
/// The signal may reach one rank, or several at different times: Engine::stop_agreed() gives one answer on all of them.
/// A second signal, more than 0.3 s after the first, has its previous effect, which mostly ends the process at once.
///
/// `trireme launch` passes SIGTERM on and kills after --grace seconds: allow for a step and a save. Its exit code is
/// then 143; that of `trireme train` is 0. Only one object at a time in a process; the destructor restores the previous
/// handlers.
class Preemption {
 public:
  Preemption();
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  /// The signal that asked this process to stop, or 0. Another rank may have been asked instead.
  static int asked();
  /// "SIGTERM", "SIGUSR1", or "a signal to another rank".
  static std::string reason();
  /// Asks as a signal would: for programs that know that their time is up.
  static void ask();

 private:
  std::array<struct sigaction, 2> before_{};
};

} // namespace trireme::engine
