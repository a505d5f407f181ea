#pragma once

#include <trireme/comm/hang_case.h>
#include <trireme/comm/progress.h>
#include <trireme/comm/store.h>
#include <trireme/comm/watched_groups.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

/// Tells the other ranks where this one is, and asks where they are.
///
/// A thread with a store connection of its own publishes the progress of all groups, and what this process notes about
/// itself (base/notes.h), when it has changed, at most every 200 ms, and looks as often whether another rank calls the
/// roll or reports a failure; a failure of a member interrupts the groups that it is in, and so does the end of its connection
/// to the store, because it was killed or because its host is silent (store::kSilence). A hang makes every rank write its dump
/// (hang_report.h) first, and one of them print the report.
/// Cost: five small round trips a second to the store, nothing per operation.
/// Never throws because the store is gone; it says so in the roll call.
class Watch {
 public:
  Watch(Store store, int rank, int size, int store_host);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void add(std::weak_ptr<Watched> group);

  /// Asks these ranks for a sign of life and their progress in group `key`. Returns when all have
  /// answered, at the latest after `patience` and a little. `stacks`: with the stacks of their main threads.
  RollCall roll_call(const std::vector<int>& ranks, const std::string& key, std::chrono::milliseconds patience, bool stacks = false);

  /// Tells all ranks that this one has failed, and which ranks it has found silent. With `hang`, returns when the
  /// dump of this rank is written. If several ranks notice a hang, the first report counts.
  void report(const std::string& error, const std::vector<int>& silent, const std::optional<Hang>& hang = std::nullopt);

  /// Says good-bye. With no `error` it then waits until the others have left too, so that nothing
  /// on its way to them is lost, unless one of them fails, does not answer or needs longer than
  /// `patience`. With an error only the store's host waits, a moment, for the others to read it.
  void leave(const std::string& error, std::chrono::milliseconds patience);

 private:
  class Loop;
  std::shared_ptr<Loop> loop_;
};

} // namespace trireme::comm
