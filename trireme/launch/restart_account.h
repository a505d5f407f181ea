#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// How far a job that saves its state has come.
struct Progress {
  /// The last step that is done, and when that became known (seconds since 1970).
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
  /// When the launcher noticed, seconds since 1970.
  double noticed_at = 0;
  /// Until the ranks ran again: up to their first step where `progress` tells, else up to their start.
  double down_seconds = 0;
  /// Work that was done and not saved: steps, and the time that they and the unfinished one had taken.
  int64_t steps_lost = 0;
  double redone_seconds = 0;
};

/// Keeps the account of a job that is started again: useful time = all time - down time - work that is redone.
///
/// ETTR, the effective training time ratio, is useful time / all time: after "Revisiting Reliability in Large-Scale Machine
/// Learning Research Clusters" (Kokolis et al., 2024), but with the first start counted as useful. Without `progress` nobody knows what
/// was saved: only the time until the ranks were started again counts as lost.
class RestartAccount {
 public:
  /// Both in seconds: since 1970, which is what `progress` is compared with, and of a clock that nobody sets.
  struct Clocks {
    std::function<double()> unix_seconds;
    std::function<double()> steady_seconds;
    static Clocks of_this_machine();
  };

  explicit RestartAccount(std::function<std::optional<Progress>()> progress, Clocks clocks = Clocks::of_this_machine());

  /// Ranks have been started, for the first time or again.
  void started();
  /// A failure that will be answered by a restart has been noticed, so long ago.
  void failed(const std::string& cause, double seconds_ago);
  /// The first step after a restart has not been seen: look() should be called now and then.
  bool waiting() const {
    return waiting_;
  }
  /// What to tell a person when the first step has just been done, else "".
  std::string look();
  /// The job has ended; returns one line about all restarts, "" without any.
  std::string finish();

  const std::vector<Restart>& restarts() const {
    return restarts_;
  }
  /// Up to finish().
  double total_seconds() const {
    return total_;
  }
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
