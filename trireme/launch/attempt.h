#pragma once

#include <trireme/launch/guardian.h>
#include <trireme/launch/launcher.h>
#include <trireme/launch/rank_output.h>
#include <trireme/launch/screen.h>
#include <trireme/launch/signals.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme::launch {

/// What all attempts of one job share.
struct Job {
  const LaunchOptions& options;
  std::filesystem::path program;
  std::filesystem::path log_dir;
  std::vector<std::string> environment;
  std::string run_id;
  int lifeline_fd;
  SignalWatch& signals;
  Guardian& guardian;
  Screen& screen;
};

struct Outcome {
  int exit_code = 0;
  /// The signal by which somebody ended the launcher, 0 for none.
  int told = 0;
  /// From the start to the first failure or the end, and from there until the last process was gone.
  double ran_seconds = 0;
  double stop_seconds = 0;
};

/// One start of all ranks, watched until no process of it is left.
///
/// running --(a failure, a signal, or all ended)--> stopping --(grace over, or a second signal)--> killing --> over
class Attempt {
 public:
  /// `number` counts from 0.
  Attempt(const Job& job, int number);
  Outcome run();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { running, stopping, killing, over };
  struct Rank {
    RankOutput output;
    pid_t pid = -1;
    bool live = false;
    int wait_status = 0;
  };

  void start();
  void start_rank(int number, int port, int listen_fd);
  void wait_for_events();
  void take_signals();
  void reap();
  void note_ends(const std::vector<size_t>& ended);
  void report(size_t number);
  void report_input_error();
  void advance();
  void stop(int signal);
  void end_leftovers();
  void start_killing();
  void kill_all();
  bool shown(size_t number) const;
  std::string describe(size_t number) const;

  const Job& job_;
  int number_;
  Clock::time_point started_at_;
  std::vector<Rank> ranks_;
  size_t live_ = 0;
  bool children_left_ = false;
  Phase phase_ = Phase::running;
  std::optional<size_t> failure_;
  Clock::time_point ended_at_{};
  Clock::time_point stop_at_{};
  Clock::time_point deadline_{};
  int told_ = 0;
  Clock::time_point told_at_{};
  bool hurry_ = false;
  int stop_signal_ = 0;
  bool leftovers_told_ = false;
  std::set<pid_t> told_groups_;
};

} // namespace trireme::launch
