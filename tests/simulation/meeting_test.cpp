// store::Meeting as horovod::elastic::run() uses it: whatever is killed, stopped or late, there is one training, and it
// ends.
#include "elastic_job.h"

#include <tests/simulation/schedules.h>

#include <trireme/base/log.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::simulation {
namespace {

using std::chrono::milliseconds;

/// As run(): round after round the ranks take the state of rank 0, train and commit; who is lost sends the others back
/// to what they committed last.
class HorovodJob final : public ElasticJob {
 public:
  using ElasticJob::ElasticJob;

 private:
  bool complete() const override {
    return std::any_of(processes_.begin(), processes_.end(),
                       [&](const auto& one) { return one.second.done == settings_.stretches; });
  }

  void program(int place, bool again) override {
    store::MeetingOptions options = settings_.meeting;
    options.place = place;
    store::Meeting meeting(options, store_.connect());
    mine().done = again ? folder_.saved : 0; // a program loads its newest checkpoint
    while (true) {
      const store::Round round = next_round(meeting);
      try {
        if (train_round(meeting, round)) {
          if (meeting.finish()) {
            folder_.finished = true;
            return;
          }
          mine().late = true;
        }
      } catch (const Lost&) {
      }
      leave_round();
    }
  }

  /// True: all is done. False: the members change.
  bool train_round(store::Meeting& meeting, const store::Round& round) {
    World world(*this, round);
    const int64_t furthest = largest(world.gather(mine().knows ? mine().done : 0));
    mine().done = world.gather(mine().done).front();
    meeting.settle();
    if (mine().done + 1 < furthest) { // a commit of some ranks alone is done again
      simulator_.violate(
          concat("round ", round.number, " goes on from ", mine().done, ", and a member had ", furthest));
    }
    train();
    for (bool opens = true; mine().done < settings_.stretches; opens = false) {
      sleep_for(settings_.stretch / 4 * (3 + simulator_.random().below(2)));
      world.gather(0);
      ++mine().done;
      if (world.rank() == 0) {
        write(mine().done, opens);
        if (mine().done % settings_.saves_every == 0) {
          save();
        }
      }
      if (world.gather(world.rank() == 0 && meeting.changed() ? 1 : 0).front() == 1) {
        return false;
      }
    }
    world.gather(0);
    return true;
  }

  static int64_t largest(const std::vector<int64_t>& values) { return *std::max_element(values.begin(), values.end()); }
};

class Quiet {
 public:
  Quiet() : before_(log::level()) { log::set_level(log::Level::silent); }
  ~Quiet() { log::set_level(before_); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  log::Level before_;
};

TEST(MeetingSimulation, RoundsOfHorovodAreOneTraining) {
  const Quiet quiet;
  run_schedules(1500, [](Simulator& simulator) { HorovodJob(simulator).run(); });
}

/// As ElasticAveragingSync and `trireme train` use it: replicas that train by themselves between two meetings.
class AveragingJob final : public ElasticJob {
 public:
  /// `announces`: a replica that trains says so to a store that was lost.
  explicit AveragingJob(Simulator& simulator, bool announces = true) : ElasticJob(simulator), announces_(announces) {
    settings_.meeting.start_patience = std::max(settings_.meeting.start_patience, milliseconds(100));
    if (simulator.random().chance(0.25)) {
      settings_.breaks = 1 + static_cast<int>(simulator.random().below(3));
      settings_.meeting.start_patience = std::max<milliseconds>(settings_.meeting.start_patience, 6 * kBetweenTries);
    } else if (simulator.random().chance(0.25)) {
      settings_.loses_store = true;
      settings_.meeting.min_ranks = 1;
      settings_.meeting.max_ranks = settings_.processes + 1;
      settings_.stretch = simulator.random().between(std::chrono::seconds(6), std::chrono::seconds(9));
      settings_.meeting.start_patience =
          6 * kBetweenTries; // shorter than a stretch, longer than it takes to find the store
    }
  }

 private:
  static constexpr milliseconds kBetweenTries{500};

  bool complete() const override {
    return folder_.saved == settings_.stretches && folder_.row == 2 * settings_.stretches;
  }
  struct Replica {
    bool joined = false;
    bool first = false;
    int first_rank = 0;
    bool others_had_trained = false;
    bool writes = false; // its log is open
    bool left_behind = false;
    bool has_met = false; // in this store
    std::unique_ptr<store::Meeting> meeting = {};
  };

  std::unique_ptr<store::Meeting> meeting_of(std::string state, std::shared_ptr<store::Client> client) {
    store::MeetingOptions options = settings_.meeting;
    options.place = mine().place;
    options.state = std::move(state);
    return std::make_unique<store::Meeting>(options, std::move(client));
  }

  void program(int, bool again) override {
    Replica replica;
    replica.meeting = meeting_of("", connect());
    attend(replica);
    replica.joined = true;
    if (!replica.others_had_trained && (again || settings_.loses_store)) { // from the newest checkpoint
      mine().done = folder_.saved;
    }
    while (mine().done < settings_.stretches) {
      const int64_t begun = mine().done;
      train();
      const auto end = simulator_.now() + settings_.stretch / 4 * (3 + simulator_.random().below(2));
      while (simulator_.now() < end) {
        sleep_for(settings_.loses_store || settings_.breaks > 0
                      ? std::min<Clock::duration>(end - simulator_.now(), milliseconds(100))
                      : end - simulator_.now());
        look_around(replica);
      }
      report(replica, 2 * begun + 1); // a row in the middle of the stretch, and one after the meeting
      sleep_for(simulator_.random().between(milliseconds(0), milliseconds(50)));
      ++mine().done;
      attend(replica);
      report(replica, 2 * mine().done);
      if (mine().done % settings_.saves_every == 0 && mine().done < settings_.stretches && is_first(replica)) {
        save();
      }
    }
    for (bool finished = false, saved = true; !finished;) {
      if (is_first(replica)) {
        report_last(replica);
        sleep_for(simulator_.random().between(milliseconds(0), milliseconds(200))); // the last evaluation
        saved = save();
      }
      leave_round();
      finished = finish(replica, saved);
    }
  }

  // The row after the last meeting, where the one that was first then has not written it.
  void report_last(Replica& replica) {
    if (!replica.writes || folder_.row < 2 * mine().done) {
      report(replica, 2 * mine().done);
    }
  }

  bool finish(Replica& replica, bool saved) {
    replica.first = replica.first && saved;
    try {
      if (is_first(replica)) {
        if (replica.meeting->finish()) {
          folder_.finished = true;
        }
        return true;
      }
      if (replica.left_behind) {
        return true;
      }
      if (replica.has_met || !saved) {
        replica.first = !replica.meeting->wait_for_finish(replica.first_rank);
        return !replica.first;
      }
    } catch (const store::LostError&) {
    }
    folder_.finished = folder_.finished || (replica.first && complete());
    return std::exchange(replica.first, true);
  }

  void look_around(Replica& replica) {
    try {
      replica.left_behind = replica.left_behind || replica.meeting->left_behind();
    } catch (const store::LostError&) {
      sleep_for(kBetweenTries);
      try {
        auto meeting = meeting_of(announces_ ? replica.meeting->state() : "", store_.connect());
        meeting->announce();
        note_new_number();
        replica.left_behind = !meeting->is_counted();
        replica.meeting = std::move(meeting);
        replica.has_met = false;
      } catch (const store::FinishedError&) {
        replica.left_behind = true;
      } catch (const store::LostError&) {
      }
    }
  }

  bool is_first(Replica& replica) {
    look_around(replica);
    return replica.first && !replica.left_behind;
  }

  void report(Replica& replica, int64_t row) {
    if (!is_first(replica)) {
      replica.writes = false;
      return;
    }
    replica.writes = write(row, !replica.writes);
  }

  void attend(Replica& replica) {
    leave_round();
    while (true) {
      try {
        if (attend_round(replica)) {
          return;
        }
      } catch (const store::LostError&) {
        replica.meeting =
            meeting_of(announces_ && replica.joined && !replica.left_behind ? replica.meeting->state() : "", connect());
      }
    }
  }

  bool attend_round(Replica& replica) {
    const store::Round round = next_round(*replica.meeting);
    bool well = false;
    Replica next{.joined = replica.joined, .writes = replica.writes};
    int64_t done = mine().done;
    try {
      exchange(round, next, done);
      well = true;
    } catch (const Lost&) {
    }
    if (!replica.meeting->conclude(well)) {
      return false;
    }
    if (mine().knows && done < mine().done) {
      simulator_.violate(concat("round ", round.number, " goes on from ", done, ", and a member has ", mine().done));
    }
    next.meeting = std::move(replica.meeting);
    next.has_met = true;
    replica = std::move(next);
    mine().done = done;
    return true;
  }

  void exchange(const store::Round& round, Replica& replica, int64_t& done) {
    World world(*this, round);
    const std::vector<int64_t> trained = world.gather(replica.joined ? 1 : 0);
    const std::vector<int64_t> steps = world.gather(done);
    replica.others_had_trained = std::find(trained.begin(), trained.end(), 1) != trained.end();
    int64_t furthest = -1;
    int source = -1;
    for (size_t rank = 0; rank < steps.size(); ++rank) {
      if ((trained[rank] == 1 || !replica.others_had_trained) && steps[rank] > furthest) {
        furthest = steps[rank];
        source = static_cast<int>(rank);
      }
    }
    world.gather(0); // buckets
    replica.first_rank = source;
    replica.first = source == world.rank();
    replica.writes = replica.writes && replica.first;
    done = furthest;
  }

  const bool announces_;
};

TEST(MeetingSimulation, ReplicasThatAverageAreOneTraining) {
  const Quiet quiet;
  run_schedules(1500, [](Simulator& simulator) { AveragingJob(simulator).run(); });
}

// One that comes to a store which was lost, or whose members have lost their connections, trains alone: the checks see
// it.
TEST(MeetingSimulation, AStoreThatForgetsWhoTrainsIsFound) {
  const Quiet quiet;
  EXPECT_THAT(first_violation(1500, [](Simulator& simulator) { AveragingJob(simulator, false).run(); }),
              testing::AnyOf(testing::HasSubstr("without any of those that train"),
                             testing::HasSubstr("without anybody who has its state")));
}

} // namespace
} // namespace trireme::simulation
