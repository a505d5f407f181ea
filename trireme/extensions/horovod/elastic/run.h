#pragma once

#include <trireme/comm/world.h>
#include <trireme/extensions/horovod/elastic/state.h>

#include <functional>
#include <string>

namespace trireme::horovod::elastic {

struct RunOptions {
  /// HOST:PORT of a store that outlives all ranks ("trireme store"). Empty: TRIREME_ELASTIC; without that the run is
  /// not elastic.
  std::string store = {};
  /// A round has at least so many ranks, and waits TRIREME_ELASTIC_TIMEOUT seconds (600) for them. 0:
  /// TRIREME_ELASTIC_RANKS, which is MIN or MIN:MAX, or 1.
  int min_ranks = 0;
  /// And at most so many; other processes wait until one is lost. The first round waits 30 s for all of them. 0:
  /// TRIREME_ELASTIC_RANKS, or any number.
  int max_ranks = 0;
  /// How often ranks may meet again because one was lost. 0: as often as needed.
  int reset_limit = 0;
  comm::WorldOptions world = {};
};

/// Trains with ranks that may be lost and come: Horovod's elastic run.
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
/// Each round of ranks meets, makes the state that of rank 0 and calls `train`; horovod's functions work in it, and
/// `world` is the world of the round. When a rank is lost, the others' operations end in PeerError; they return to what
/// they committed last, meet again under new ranks, in the same processes, and call `train` again. Processes that have
/// come are taken in at a commit. Returns when `train` has returned on all ranks: true. False: the others have finished
/// the training while this process waited, or was late: its state is not the trained one, it has nothing to save, and
/// ends with 0. Save the result at the end of `train`: when run() returns, the training counts as finished, and nobody
/// saves for a rank that is lost then. A program that calls run() several times trains one after the other; each is
/// finished before the next begins. What is made for ranks (a DistributedOptimizer, process sets) is made in `train`,
/// which lets PeerError and what is no std::exception pass. Not elastic: one round, with the ranks of the launcher.
/// Errors: InputError after init(), or for variables that make no sense; PeerError where too few ranks are left, the
/// store is lost, or the ranks met too often; what else `train` throws.
bool run(State& state, const std::function<void(comm::World& world)>& train, const RunOptions& options = {});

} // namespace trireme::horovod::elastic
