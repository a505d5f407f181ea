#pragma once

#include <trireme/comm/world.h>
#include <trireme/extensions/horovod/elastic/state.h>

#include <functional>
#include <string>

namespace trireme::horovod::elastic {

struct RunOptions {
  /// HOST:PORT of a store that outlives all ranks ("trireme store"). Empty: TRIREME_ELASTIC; if that is unset, the run
  /// is not elastic.
  std::string store = {};
  /// Minimum of ranks in a round, which waits TRIREME_ELASTIC_TIMEOUT seconds (600) for them. 0: TRIREME_ELASTIC_RANKS,
  /// which is MIN or MIN:MAX, or 1.
  int min_ranks = 0;
  /// Maximum; other processes wait until a rank is lost. The first round waits 30 s for this many. 0:
  /// TRIREME_ELASTIC_RANKS, or any number.
  int max_ranks = 0;
  /// How often a lost rank may start a new round; 0: any number of times.
  int reset_limit = 0;
  comm::WorldOptions world = {};
};

/// Trains with ranks that may be lost and join, as Horovod's elastic run does.
///
///   hvd::elastic::TorchState state;   // step, model, optimizer
///   hvd::elastic::run(state, [&](comm::World&) {
///     hvd::DistributedOptimizer optimizer(adam, model->named_parameters());
///     for (; step < kSteps; ++step) {
///       if (step % 10 == 0) { state.commit(); }
///       ... optimizer.step();
///     }
///   });
///
/// Rounds: each round connects its ranks, broadcasts rank 0's state and calls `train`, in which horovod's functions
/// work; `world` is the world of the round. If a rank is lost, operations of the others end in PeerError. They return
/// to their last commit, form a new round with new ranks in the same processes, and call `train` again. Joining
/// processes are added at a commit.
///
/// Returns true when `train` has returned on all ranks. Returns false if the others have finished the training while
/// this process waited or was late: its state is not the trained one, so it must save nothing and exit with 0. Save the
/// result at the end of `train`: once run() returns, the training counts as finished, and no rank replaces one that is
/// lost then. A program that calls run() several times trains one after the other; each is finished before the next
/// begins.
///
/// Create what depends on the ranks (a DistributedOptimizer, process sets) in `train`, and let it pass PeerError and
/// exceptions that are no std::exception. A run that is not elastic has one round, with the launcher's ranks.
///
/// Errors: InputError after init(), or for invalid variables. PeerError if too few ranks are left, the store is lost,
/// or reset_limit is exceeded. Other exceptions of `train`.
bool run(State& state, const std::function<void(comm::World& world)>& train, const RunOptions& options = {});

} // namespace trireme::horovod::elastic
