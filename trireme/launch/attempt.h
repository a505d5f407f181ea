#pragma once

#include <trireme/launch/last_words.h>
#include <trireme/launch/launcher.h>
#include <trireme/launch/place.h>
#include <trireme/launch/rank_output.h>
#include <trireme/launch/screen.h>
#include <trireme/launch/signals.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// State shared by all attempts of one job.
struct Job {
  const LaunchOptions& options;
  std::filesystem::path log_dir;
  SignalWatch& signals;
  Screen& screen;
  RestartAccount& account;
  /// Receives the launcher's signals instead of the running attempt.
  std::function<void(int)> on_signal = {};
  /// Replaces poll() in tests: waits until `wake` at the latest, and returns a signal to the launcher if one came.
  std::function<std::optional<int>(Clock::time_point wake)> wait = {};
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
  /// The signal came before any rank (or worker) was ready to answer it by saving.
  bool not_begun = false;
  /// Seconds from the start to the first failure or the end, and from there until the last process was gone.
  double ran_seconds = 0;
  double stop_seconds = 0;
};

/// Makes an attempt the start of one task, whose world is separate from those of other tasks; see tasks.h.
struct Task {
  /// "worker", "server".
  std::string kind;
  int number = 0;
  /// How its output is shown.
  Shown shown = Shown::not_at_all;
  /// For its ranks only.
  Variables variables;
  /// Processes of other tasks on its host.
  int neighbours = 0;
};

/// Starts all ranks once, and watches them until none of their processes is left.
///
/// assembling --(all places ready, rank 0's socket open)--> running --(a failure, a signal, or all ended)--> stopping
///   --(grace over, or a second signal)--> killing --> over
class Attempt : private PlaceEvents {
 public:
  /// `number` counts from 0. Ranks connect at `address`, the first member's.
  Attempt(const Job& job, int number, std::vector<Member> members, std::string address,
          std::vector<std::string> command);
  /// The same for one task. It is not started before release(), and its place's socket stays open for later starts.
  Attempt(const Job& job, int number, Member member, std::string address, std::vector<std::string> command, Task task);
  /// Runs the attempt to its end, by the functions below.
  Outcome run();
  /// Starts no rank earlier; hosts are connected in the meantime. Call it before run().
  void start_not_before(Clock::time_point when) { not_before_ = when; }

  /// True when its ranks can be started.
  bool assembled() const { return listening_ && members_.front().place.ports().has_value(); }
  /// Starts a task, adding these variables.
  void release(const Variables& variables);
  /// Continues as far as possible without waiting.
  void advance();
  bool over() const { return phase_ == Phase::over; }
  Outcome finish();
  /// Handles a signal to the launcher.
  void take_signal(int number);
  /// Asks a task without further work to end: SIGTERM. Its outcome is good if it ends with 0 or by that signal.
  void ask_to_end();
  /// Ends all processes that are left, after an error of another attempt.
  void kill();

  void add_to(std::vector<pollfd>& polled) const;
  void serve(const std::vector<pollfd>& polled);
  std::optional<Clock::time_point> wake() const;

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
  void note_ends();
  void note_lost_places();
  bool says_why(size_t number) const;
  bool wrong_input(size_t number) const;
  Blame blame_of(size_t number) const;
  std::vector<size_t> blamed_by(size_t number, bool living) const;
  size_t culprit() const;
  bool others_may_explain() const;
  std::string exception_of(size_t number) const;
  void report_failure();
  void report_rank(size_t number);
  void report_input_error();
  bool rank_0_has_said(size_t number) const;
  void stop();
  void start_killing();
  bool preempting() const;
  bool anything_left() const;
  /// When to report that ranks still run although others have ended: one may be stopped.
  std::optional<Clock::time_point> late_ends() const;
  void say_late_ends();
  bool stepped() const;
  bool shown(size_t number) const;
  std::string name(size_t number) const;
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
  std::optional<Task> task_;
  bool released_ = true;
  Clock::time_point not_before_{};
  Clock::time_point started_at_;
  double began_at_; // seconds since 1970
  std::vector<Rank> ranks_;
  std::vector<bool> lost_;
  std::vector<size_t> ended_;
  size_t live_ = 0;
  Phase phase_ = Phase::assembling;
  bool listening_ = false;
  bool started_ = false;
  /// After a failure the remaining ranks have nothing to save.
  static constexpr double kFailureGrace = 5;
  static Clock::time_point in_seconds(double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  std::optional<Failure> failure_;
  /// A rank has failed, and that is not reported yet.
  bool report_due_ = false;
  std::optional<Clock::time_point> first_end_; // of a rank that has ended without a failure
  bool late_ends_said_ = false;
  Clock::time_point ended_at_{};
  Clock::time_point stop_at_{};
  Clock::time_point deadline_{};
  double grace_ = 0;
  int received_signal_ = 0;
  Clock::time_point received_at_{};
  bool hurry_ = false;
  bool asked_to_end_ = false;
  int stop_signal_ = 0;
  bool leftovers_reported_ = false;
};

/// Waits for an event of one of the attempts or a signal to the launcher, and delivers it.
void wait_for_events(const Job& job, const std::vector<Attempt*>& attempts);

} // namespace trireme::launch
