#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace trireme::fused {

/// Threads that share short work, of microseconds, with the thread that has it. Each has a range of the parts, which it
/// claims one by one and in order (so that a processor reads memory ahead of it), and then takes from the ends of the
/// others' ranges. A helper that the system does not run delays nobody: the others take its parts, and the caller waits
/// only for helpers that have begun one. (A parallel region of OpenMP waits until each of its threads has run.)
///
/// Idle helpers spin for about 100 us, and sleep then. A call costs about 1 us, and a system call if helpers sleep.
class HelperThreads {
 public:
  HelperThreads() = default;
  ~HelperThreads();
  HelperThreads(const HelperThreads&) = delete;
  HelperThreads& operator=(const HelperThreads&) = delete;

  /// Calls part(i) once for each i from 0 to `parts` - 1, at most 65,535, on this thread and up to `threads` - 1
  /// helpers, at most 255, which are started when first needed. If another thread has the helpers, this one works
  /// alone. Errors: the first exception of a part, after those begun; the others are not called.
  template <class F>
  void run(int64_t parts, int threads, const F& part) {
    run_parts(parts, threads, [](const void* f, int64_t i) { (*static_cast<const F*>(f))(i); }, &part);
  }

 private:
  using Call = void (*)(const void* context, int64_t part);
  static constexpr int kMostThreads = 256;

  /// The parts that one thread has still to do: number of the work, end and begin of the range. One word, so that who
  /// claims a part knows that its work is not over. A cache line of its own: its thread writes it for each part.
  struct alignas(64) Range {
    std::atomic<uint64_t> state{0};
  };

  void run_parts(int64_t parts, int threads, Call call, const void* context);
  void start(int helpers);
  void help(int index, uint32_t work);
  /// Does parts of the work with this number until none is left, first those of the range of this thread.
  void take_parts(uint32_t work, int thread);
  void take(int64_t part);
  /// Spins, then sleeps, until there is other work than `work`, or the end. Returns its number.
  uint32_t wait_for_work(uint32_t work);

  std::atomic<bool> owned_{false}; // by the caller that has the helpers
  std::vector<std::jthread> helpers_;
  std::atomic<int> invited_{0};            // helpers of this work
  std::array<Range, kMostThreads> ranges_; // of the caller, then of the helpers
  std::atomic<uint32_t> work_{0};          // its number, to sleep on
  std::atomic<int> sleepers_{0};
  std::atomic<bool> ends_{false};
  alignas(64) std::atomic<int64_t> done_{0};
  // Of the work; read by those who have claimed a part.
  Call call_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

/// Those that all operations of this folder share. They live as long as the process.
HelperThreads& helper_threads();

} // namespace trireme::fused
