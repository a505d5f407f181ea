#pragma once

#include <trireme/store/meeting.h>

#include <tests/simulation/simulated_store.h>
#include <tests/simulation/simulator.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace trireme::simulation {

/// What a seed chooses for a job of processes that come and go.
struct ElasticSettings {
  int processes = 2;
  store::MeetingOptions meeting = {};
  Clock::duration stretch = {}; // of a process between two commits, or meetings
  int64_t stretches = 4;
  int64_t saves_every = 1; // stretches
  int kills = 0;
  int pauses = 0;
  Clock::duration world_timeout = {};
  double fresh_at_end = 0; // chance that another process comes late
  bool loses_store = false;
  int breaks = 0; // connections to a store that goes on
};

/// The run folder: who writes what, and when that is a second training of the same run.
struct RunFolder {
  int64_t saved = 0; // stretches that the newest checkpoint has
  int64_t row = 0;   // the last one in metrics.jsonl
  int64_t writer_round = 0;
  int64_t claim = 0; // of the one that writes
  bool finished = false;
};

/// A job of an elastic run: its store, the launcher that starts killed processes again, faults, and what must hold
/// after each event. Programs say what they do: enter_round(), train(), write().
class ElasticJob {
 public:
  explicit ElasticJob(Simulator& simulator);
  virtual ~ElasticJob() = default;
  ElasticJob(const ElasticJob&) = delete;
  ElasticJob& operator=(const ElasticJob&) = delete;

  /// Runs the job to its end.
  void run();

 protected:
  /// What one process does, from its start on. `again`: another one of its place was killed before.
  virtual void program(int place, bool again) = 0;
  /// Whether all has been done that there is to do.
  virtual bool complete() const = 0;

  /// A failed operation of the members of a round.
  class Lost : public PeerError {
   public:
    explicit Lost(const std::string& what) : PeerError("simulation", what, "") {}
  };

  enum class Doing { nothing, waits, trains };
  struct Process {
    Doing doing = Doing::nothing;
    int place = 0;
    int64_t id = 0;     // in the store
    int64_t round = 0;  // counted on where a store has begun anew
    bool late = false;  // the others have gone on without it
    bool stale = false; // and the store that knew was lost: what it does cannot be told from the training
    bool knows = false; // has the training's state
    int64_t done = 0;   // stretches that count
    int64_t claim = 0;
  };
  Process& mine() { return processes_[simulator_.running()]; }
  /// To the store, as soon as it is there.
  std::shared_ptr<store::Client> connect();
  store::Round next_round(store::Meeting& meeting);
  void train();
  void leave_round();
  /// Row `row` of metrics.jsonl. `opens`: this process has become the one that writes, claims the folder, and cuts off
  /// later rows. False: another one has claimed it since.
  bool write(int64_t row, bool opens);
  /// False: another one has claimed the folder since.
  bool save();
  /// This process has come to the store under another number.
  void note_new_number();

  /// The world of a round. Each call is one collective operation, and throws Lost where a member is gone, has left, or
  /// is silent.
  class World {
   public:
    World(ElasticJob& job, const store::Round& round);
    ~World();
    World(const World&) = delete;
    World& operator=(const World&) = delete;
    /// The values of all ranks.
    std::vector<int64_t> gather(int64_t value);
    int rank() const { return round_.rank; }

   private:
    struct Shared;
    void leave();

    ElasticJob& job_;
    const store::Round round_;
    std::shared_ptr<Shared> shared_;
    int64_t operations_ = 0;
  };

  Simulator& simulator_;
  SimulatedStore store_;
  ElasticSettings settings_;
  RunFolder folder_;
  std::map<int, Process> processes_;

 private:
  void launch(int place, bool again, Clock::duration later);
  void disturb();
  void lose_store();
  void check();
  void check_first_round_of_store(const store::Decision& next);
  void check_decision(const store::Decision& next);
  void add_other_numbers();
  void check_left_out(const store::Decision& next);
  bool was_stopped(int process) const;
  void check_who_waits();
  bool is_gone(int64_t id) const;
  /// Whether it is a member of the last round, perhaps under another number, and has the training's state.
  bool has_state(int64_t id) const;
  std::vector<int> living() const;

  bool over_ = false;
  int kills_left_ = 0;
  int started_ = 0;
  int64_t rounds_before_ = 0; // in a store that was lost
  store::Decision last_;
  std::string next_key_;
  std::vector<std::string> come_keys_;                      // of the members of last_
  Clock::time_point first_came_ = Clock::time_point::max(); // of the members of last_, for the next round
  Clock::time_point all_wait_since_ = Clock::time_point::max();
  Clock::time_point orphaned_since_ = Clock::time_point::max();
  std::map<std::string, std::weak_ptr<void>> worlds_;
  std::set<int> paused_;
  std::map<int, Clock::time_point> went_on_; // processes that were stopped
};

} // namespace trireme::simulation
