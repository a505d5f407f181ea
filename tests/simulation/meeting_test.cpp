// store::Meeting as horovod::elastic::run() uses it: whatever is killed, stopped or late, there is one training, and it ends.
#include "elastic_job.h"

#include <tests/simulation/schedules.h>

#include <trireme/base/log.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::simulation {
namespace {

using std::chrono::milliseconds;

/// As run(): round after round the ranks take the state of rank 0, train and commit; who is lost sends the others back to what they
/// committed last.
class HorovodJob final : public ElasticJob {
 public:
  using ElasticJob::ElasticJob;

 private:
  bool complete() const override {
    return std::any_of(processes_.begin(), processes_.end(), [&](const auto& one) { return one.second.done == settings_.stretches; });
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
      simulator_.violate(concat("round ", round.number, " goes on from ", mine().done, ", and a member had ", furthest));
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

  static int64_t largest(const std::vector<int64_t>& values) {
    return *std::max_element(values.begin(), values.end());
  }
};

class Quiet {
 public:
  Quiet() : before_(log::level()) {
    log::set_level(log::Level::silent);
  }
  ~Quiet() {
    log::set_level(before_);
  }
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
  using ElasticJob::ElasticJob;

 private:
  bool complete() const override {
    return folder_.saved == settings_.stretches && folder_.row == 2 * settings_.stretches;
  }
  struct Replica {
    bool joined = false;
    bool first = false;
    int first_rank = 0;
    bool others_had_trained = false;
    bool writes = false; // its log is open
  };

  void program(int place, bool again) override {
    store::MeetingOptions options = settings_.meeting;
    options.place = place;
    options.start_patience = std::max(options.start_patience, milliseconds(100));
    store::Meeting meeting(options, store_.connect());
    Replica replica;
    attend(meeting, replica);
    replica.joined = true;
    if (!replica.others_had_trained && again) {
      mine().done = folder_.saved;
    }
    while (mine().done < settings_.stretches) {
      const int64_t begun = mine().done;
      train();
      sleep_for(settings_.stretch / 4 * (3 + simulator_.random().below(2)));
      report(meeting, replica, 2 * begun + 1); // a row in the middle of the stretch, and one after the meeting
      sleep_for(simulator_.random().between(milliseconds(0), milliseconds(50)));
      ++mine().done;
      attend(meeting, replica);
      report(meeting, replica, 2 * mine().done);
      if (mine().done % settings_.saves_every == 0 && mine().done < settings_.stretches && is_first(meeting, replica)) {
        save();
      }
    }
    if (!is_first(meeting, replica)) {
      leave_round();
      if (meeting.wait_for_finish(replica.first_rank)) {
        return;
      }
      replica.first = true;
      report(meeting, replica, 2 * mine().done);
    }
    sleep_for(simulator_.random().between(milliseconds(0), milliseconds(200))); // the last evaluation
    save();
    if (meeting.finish()) {
      folder_.finished = true;
    }
  }

  bool is_first(store::Meeting& meeting, const Replica& replica) {
    return replica.first && !meeting.left_behind();
  }

  void report(store::Meeting& meeting, Replica& replica, int64_t row) {
    if (!is_first(meeting, replica)) {
      replica.writes = false;
      return;
    }
    write(row, !std::exchange(replica.writes, true));
  }

  void attend(store::Meeting& meeting, Replica& replica) {
    leave_round();
    while (true) {
      const store::Round round = next_round(meeting);
      bool well = false;
      Replica next = replica;
      int64_t done = mine().done;
      try {
        exchange(round, next, done);
        well = true;
      } catch (const Lost&) {
      }
      if (meeting.conclude(well)) {
        if (mine().knows && done < mine().done) {
          simulator_.violate(concat("round ", round.number, " goes on from ", done, ", and a member has ", mine().done));
        }
        replica = next;
        mine().done = done;
        return;
      }
    }
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
};

TEST(MeetingSimulation, ReplicasThatAverageAreOneTraining) {
  const Quiet quiet;
  run_schedules(1500, [](Simulator& simulator) { AveragingJob(simulator).run(); });
}

} // namespace
} // namespace trireme::simulation
