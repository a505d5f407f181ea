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

/// Identifies a process as a replica of an elastic run, and names the store of the job.
struct ReplicaOptions {
  /// From 0. A restarted process keeps the number of its predecessor.
  int replica = 0;
  /// Largest number of replicas at a time.
  int replicas = 1;
  /// The job's store, in a process that outlives all replicas.
  store::Endpoint store = {};
  store::Secret secret = {};
  std::string job = {};
  /// How long an averaging step waits for a replica that is alive, after another one has arrived. The first round waits
  /// as long for all replicas.
  std::chrono::milliseconds patience{60'000};
};

/// AveragingSync for replicas that may be lost or join during the run. A lost replica changes the mean, and the run
/// continues.
///
/// Each replica is a process in its own world. In an averaging step the live replicas agree on the members
/// (store::Meeting). They connect a world, or keep the last one if the members are the same, and sum their parameters
/// into a copy. The sums are applied only when all members have confirmed them. Otherwise the step is repeated without
/// those that were lost, and nothing was averaged.
///
/// Members that have trained as far as the furthest are averaged, in the order of their numbers. A joining or late
/// replica receives the mean. It also receives optimizer states, outer momentum, step and the rest of the state from
/// the oldest replica. A waiting replica never starts a training of its own while members of the last round live: it
/// waits for their next averaging step.
///
/// Cost of an averaging step for P bytes of fp32 parameters and N replicas: each sends 2P(N-1)/N, copies its
/// parameters, and makes about ten requests to the store. A joining replica costs the others a broadcast of parameters,
/// states and momentum. The outer optimizer keeps 2P on every replica: each steps the whole model, to the same bits.
///
/// Errors of join() and after_step(): store::ConnectError if the store does not come back. store::FinishedError, with
/// status 0, if the others have finished the training.
class ElasticAveragingSync final : public AveragingSync, private Workers {
 public:
  /// `groups`: groups of this replica alone. Errors: InputError for several ranks, or with a start_step.
  ElasticAveragingSync(ReduceGroups groups, const AveragingOptions& options, ReplicaOptions replica);
  ~ElasticAveragingSync() override;

  Workers* workers() override { return this; }
  int64_t steps_until_equal() const override { return equal_ ? 0 : options_.every - steps_ % options_.every; }
  int64_t bytes_sent() const override;

 private:
  /// Results of a round before they are applied to the model.
  struct Exchange;

  void attach_rest(Rest rest) override { rest_ = std::move(rest); }
  bool join() override;
  /// Cost: at most every 20 ms a request to the store. If the store hangs, the request fails after 30 s.
  int64_t after_step() override;
  /// False once the others have continued without this replica. Cost: at most every 20 ms a request to the store.
  bool is_first() override {
    look_around();
    return first_ && !left_behind_;
  }
  bool finish(bool saved) override;
  std::string_view axis() const override { return "data"; }

  void finish_round() override { due_ = true; }
  void attend();
  bool attend_round();
  void open(const store::Round& round);
  void exchange(const store::Round& round, Exchange& all);
  void exchange_bucket(int64_t buffer, int64_t bucket, Exchange& all);
  void take(Exchange& all);
  void look_around();
  void say_again_that_it_trains();
  void say_who_is_there(const store::Round& round, const Exchange& all);
  const comm::Group& ranks() const { return world_->group(); }

  ReplicaOptions replica_;
  Rest rest_;
  std::unique_ptr<store::Meeting> meeting_;
  std::optional<comm::World> world_; // of the last round
  std::vector<int64_t> members_;     // of `world_`
  std::vector<int> places_;          // of the last round
  int64_t sent_before_ = 0;          // in earlier worlds
  bool joined_ = false;
  bool due_ = false;
  bool first_ = false;
  int first_rank_ = 0; // in the last round
  bool left_behind_ = false;
  Clock::time_point look_at_ = {};  // when look_around() asks the store again
  bool others_had_trained_ = false; // before the last round
};

/// Makes InitializeOptions::sync for an elastic replica. `options` are those of its configuration. Its world has one
/// rank.
SyncFactory replica_sync(const AveragingOptions& options, ReplicaOptions replica);

} // namespace trireme::parallel
