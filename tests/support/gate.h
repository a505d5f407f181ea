#pragma once

namespace trireme::test {

/// Lets processes that were forked wait for each other instead of for a time. Made before the fork.
///
///   Gate failed;
///   run_ranks(2, [&](World& world) {
///     if (world.rank() == 1) { failed.wait(); return; }   // away until rank 0 has had its error
///     peer_error(...); failed.open();
///   });
///
/// Whoever waits for what never comes is ended by the deadline of run_ranks().
class Gate {
 public:
  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// Lets `times` waits pass, now or later.
  void open(int times = 1);
  /// Sleeps until it was opened so many times; each opening lets one wait pass. Any process, any thread.
  void wait(int times = 1);

 private:
  int descriptor_;
};

} // namespace trireme::test
