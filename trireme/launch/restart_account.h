#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// Progress of a job that saves its state.
struct Progress {
  /// The last finished step, and when it became known (seconds since 1970).
  int64_t step = 0;
  double stepped_at = 0;
  /// Steps since the newest checkpoint, and how long they took.
  int64_t unsaved_steps = 0;
  double unsaved_seconds = 0;
};

/// One failure and what it cost.
struct Restart {
  /// "rank 1 was killed by SIGKILL", "host node2 was lost: ...".
  std::string cause;
  /// When the launcher noticed it, seconds since 1970.
  double noticed_at = 0;
  /// Seconds until the ranks ran again: until their first step if `progress` is known, else until their start.
  double down_seconds = 0;
  /// Work that was not saved: finished steps, and the time of these and the unfinished step.
  int64_t steps_lost = 0;
  double redone_seconds = 0;
};

/// Measures what restarts cost a job: useful time = all time - down time - repeated work.
///
/// ETTR, the effective training time ratio, is useful time / all time: after "Revisiting Reliability in Large-Scale
/// Machine Learning Research Clusters" (Kokolis et al., 2024), but the first start counts as useful. Without `progress`
/// the saved steps are unknown: only the time until the ranks were restarted counts as lost.
class RestartAccount {
 public:
  /// Both in seconds: since 1970, to compare with `progress`, and monotonic.
  struct Clocks {
    std::function<double()> unix_seconds;
    std::function<double()> steady_seconds;
    static Clocks of_this_machine();
  };

  explicit RestartAccount(std::function<std::optional<Progress>()> progress, Clocks clocks = Clocks::of_this_machine());

  /// Call it when ranks were started, for the first time or again.
  void started();
  /// Call it for a failure before a restart; it was noticed `seconds_ago`.
  void failed(const std::string& cause, double seconds_ago);
  /// True until the first step after a restart: then call look() now and then.
  bool waiting() const { return waiting_; }
  /// Returns a message for the user when the first step after a restart is done, else "".
  std::string look();
  /// Call it at the end of the job; returns one line about all restarts, "" without any.
  std::string finish();

  const std::vector<Restart>& restarts() const { return restarts_; }
  /// Up to finish().
  double total_seconds() const { return total_; }
  double ettr() const;

 private:
  void close(double down_seconds);

  std::function<std::optional<Progress>()> progress_;
  Clocks clocks_;
  /// Times of the steady clock.
  double begun_ = 0;
  double started_steady_ = 0;
  /// Since 1970.
  double started_at_ = 0;
  bool waiting_ = false;
  std::optional<Restart> open_;
  std::vector<Restart> restarts_;
  double total_ = 0;
};

} // namespace trireme::launch
