#pragma once

#include <signal.h>

#include <array>
#include <string>

namespace trireme::engine {

/// Turns SIGTERM and SIGUSR1 into "finish the step, save, leave", while it lives. Make one before initialize():
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
/// The signal may reach one rank, or several at different times: Engine::stop_agreed() makes one answer of it.
/// A second signal (later than 0.3 s after the first) acts as if this object did not exist: it mostly ends the process
/// at once. `trireme launch` passes SIGTERM on and kills after --grace seconds: give it time for a step and a save. Its
/// own exit code is then 143; `trireme train` ends with 0. One at a time in a process; it puts back the handlers that
/// were there before.
class Preemption {
 public:
  Preemption();
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  /// The signal that asked this process to stop, 0 while none did. Other ranks may have been asked and not this one.
  static int asked();
  /// "SIGTERM", "SIGUSR1", or "a signal to another rank".
  static std::string reason();
  /// Asks as a signal would: for programs that know that their time is over.
  static void ask();

 private:
  std::array<struct sigaction, 2> before_{};
};

} // namespace trireme::engine
