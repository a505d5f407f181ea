#pragma once

#include <trireme/base/clock.h>
#include <trireme/comm/world.h>
#include <trireme/extensions/averaging/averaging_sync.h>
#include <trireme/shards/data_parallel/sync_factory.h>
#include <trireme/shards/data_parallel/workers.h>
#include <trireme/store/meeting.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel {

/// Which replica a process is, of a run in which they come and go, and where they meet.
struct ReplicaOptions {
  /// From 0 on. A process that is started again has the number of the one before.
  int replica = 0;
  /// There are at most so many at a time.
  int replicas = 1;
  /// The job's store, of a process that outlives all replicas.
  store::Endpoint store = {};
  store::Secret secret = {};
  std::string job = {};
  /// A meeting does without a replica that lives and does not come within so long after another one; the first meeting
  /// waits so long for all.
  std::chrono::milliseconds patience{60'000};
};

/// AveragingSync for replicas that are lost and come: a replica that is gone changes the mean, not the run.
///
/// Each replica is a process in a world of its own. At a meeting those that live agree on who takes part
/// (store::Meeting), open a world for it, or keep the last one where nobody has come or gone, and add up their
/// parameters beside the model. Only when all say that they have the sums does any of them use them; else they meet
/// again, and nothing was averaged: who dies in the middle of a meeting is not part of it. Those that have taken part
/// before and have come as far as the furthest are averaged; one that comes, or has come too late, takes the mean, and
/// the optimizer states, the outer momentum, the step and what else there is of the replica that has been there for
/// longest. The mean is added up in the order of the replicas' numbers. Cost at a meeting, for P bytes of fp32
/// parameters and N replicas: 2P(N-1)/N sent by each, and a copy of the parameters; about ten requests to the store.
/// Who comes costs the others a broadcast of parameters, states and momentum. The outer optimizer keeps 2P on each
/// replica, which is not divided: each steps the whole model, to the same bits. A replica that waits, or is late, never
/// trains by itself while the members of the last meeting live: it waits for their next one. Errors of join() and
/// after_step(): store::ConnectError where the store is gone for good; store::FinishedError, of status 0, where the
/// others have finished the training meanwhile.
class ElasticAveragingSync final : public AveragingSync, private Workers {
 public:
  /// `groups`: of this replica alone. Errors: InputError for several ranks, or with a start_step.
  ElasticAveragingSync(ReduceGroups groups, const AveragingOptions& options, ReplicaOptions replica);
  ~ElasticAveragingSync() override;

  Workers* workers() override {
    return this;
  }
  int64_t steps_until_equal() const override {
    return equal_ ? 0 : options_.every - steps_ % options_.every;
  }
  int64_t bytes_sent() const override;

 private:
  /// What the members of a round have exchanged; nothing of the model has changed.
  struct Exchange;

  void attach_rest(Rest rest) override {
    rest_ = std::move(rest);
  }
  bool join() override;
  /// Cost: at most every 20 ms, a request to the store, which a store that hangs answers with an error after 30 s.
  int64_t after_step() override;
  /// False once the others have continued without this one. Cost: at most every 20 ms, a request to the store.
  bool is_first() override {
    look_around();
    return first_ && !left_behind_;
  }
  bool finish(bool saved) override;
  std::string_view axis() const override {
    return "data";
  }

  void meet() override {
    due_ = true;
  }
  void attend();
  bool attend_round();
  void open(const store::Round& round);
  void exchange(const store::Round& round, Exchange& all);
  void exchange_bucket(int64_t buffer, int64_t bucket, Exchange& all);
  void take(Exchange& all);
  void look_around();
  void say_again_that_it_trains();
  void say_who_is_there(const store::Round& round, const Exchange& all);
  const comm::Group& ranks() const {
    return world_->group();
  }

  ReplicaOptions replica_;
  Rest rest_;
  std::unique_ptr<store::Meeting> meeting_;
  std::optional<comm::World> world_; // of the last round
  std::vector<int64_t> members_;     // of `world_`
  std::vector<int> places_;          // of the last meeting
  int64_t sent_before_ = 0;          // in earlier worlds
  bool joined_ = false;
  bool due_ = false;
  bool first_ = false;
  int first_rank_ = 0; // in the round of the last meeting
  bool left_behind_ = false;
  Clock::time_point look_at_ = {};  // when look_around() asks the store again
  bool others_had_trained_ = false; // before the last meeting
};

/// InitializeOptions::sync of an elastic replica, whose configuration has these `options`: its world has one rank.
SyncFactory replica_sync(const AveragingOptions& options, ReplicaOptions replica);

} // namespace trireme::parallel
