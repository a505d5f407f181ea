#pragma once

#include <trireme/launch/launcher.h>
#include <trireme/launch/place.h>
#include <trireme/launch/rank_output.h>
#include <trireme/launch/screen.h>
#include <trireme/launch/signals.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// What all attempts of one job share.
struct Job {
  const LaunchOptions& options;
  std::filesystem::path log_dir;
  SignalWatch& signals;
  Screen& screen;
  RestartAccount& account;
};

/// A place and the number of ranks on it.
struct Member {
  /// "" for a job on one machine.
  std::string name;
  Place& place;
  int ranks = 1;
};

struct Outcome {
  int exit_code = 0;
  /// The signal that stopped the launcher, 0 for none.
  int received_signal = 0;
  /// The first failure, "" for none.
  std::string cause;
  /// No rank was started because a host was lost before.
  bool not_started = false;
  /// Seconds from the start to the first failure or the end, and from there until the last process was gone.
  double ran_seconds = 0;
  double stop_seconds = 0;
};

/// Starts all ranks once, and watches them until none of their processes is left.
///
/// assembling --(all places ready, rank 0's socket open)--> running --(a failure, a signal, or all ended)--> stopping
///   --(grace over, or a second signal)--> killing --> over
class Attempt : private PlaceEvents {
 public:
  /// `number` counts from 0. Ranks meet at `address`, the first member's.
  Attempt(const Job& job, int number, std::vector<Member> members, std::string address, std::vector<std::string> command);
  Outcome run();

 private:
  enum class Phase { assembling, running, stopping, killing, over };
  struct Rank {
    RankOutput output;
    size_t member;
    bool live = false;
    RankEnd end;
  };
  struct Failure {
    /// nullopt: the host failed.
    std::optional<size_t> rank;
    size_t member = 0;
  };

  void assemble();
  void start_all();
  void wait_for_events();
  void take_signals();
  void note_ends();
  void note_lost_places();
  void report_rank(size_t number);
  void report_input_error();
  void advance();
  void stop();
  void start_killing();
  bool preempting() const;
  bool anything_left() const;
  bool shown(size_t number) const;
  std::string describe(size_t number) const;
  std::string describe_failure() const;
  Outcome outcome() const;

  void output(int rank, int stream, std::string_view bytes) override;
  bool wants(int rank, int stream) const override;
  void ended(int rank, const RankEnd& end) override;
  void say(std::string_view words) override;

  const Job& job_;
  int number_;
  std::vector<Member> members_;
  std::string address_;
  std::vector<std::string> command_;
  Clock::time_point started_at_;
  std::vector<Rank> ranks_;
  std::vector<bool> lost_;
  std::vector<size_t> ended_;
  size_t live_ = 0;
  Phase phase_ = Phase::assembling;
  bool listening_ = false;
  bool started_ = false;
  std::optional<Failure> failure_;
  Clock::time_point ended_at_{};
  Clock::time_point stop_at_{};
  Clock::time_point deadline_{};
  double grace_ = 0;
  int received_signal_ = 0;
  Clock::time_point received_at_{};
  bool hurry_ = false;
  int stop_signal_ = 0;
  bool leftovers_reported_ = false;
};

} // namespace trireme::launch
