#pragma once

#include <trireme/comm/hang_case.h>
#include <trireme/comm/long_waits.h>
#include <trireme/comm/progress.h>
#include <trireme/comm/store.h>
#include <trireme/comm/watched_groups.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

/// Reports this rank's progress to the other ranks, and queries theirs.
///
/// A thread with its own store connection publishes the progress of all groups and this process's notes (base/notes.h)
/// when they change, at most every 200 ms. As often it checks for roll calls, for failures of other ranks, and for long
/// waits (long_waits.h), and polls devices for operations that no thread waits for (Watched::follow_device). If a
/// member fails, or its store connection ends because it was killed or its host is silent (store::kSilence), its groups
/// on this rank are interrupted. In a hang every rank first writes its dump (hang_report.h), and one of them prints the
/// report. Cost: five small round trips per second to the store, none per operation. Never throws because the store is
/// gone: the roll call reports that.
class Watch {
 public:
  Watch(Store store, int rank, int size, int store_host, WaitLimits limits = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void add(std::weak_ptr<Watched> group);

  /// Queries these ranks' progress in group `key`. Returns when all have answered, or shortly after `patience`.
  /// `stacks`: with the stacks of their main threads.
  RollCall roll_call(const std::vector<int>& ranks, const std::string& key, std::chrono::milliseconds patience,
                     bool stacks = false);

  /// Reports to all ranks that this one has failed, and which ranks did not answer it. With `hang`, returns when the
  /// dump of this rank is written. If several ranks notice a hang, the first report counts.
  void report(const std::string& error, const std::vector<int>& silent, const std::optional<Hang>& hang = std::nullopt);

  /// Fails all groups of this rank, which has reported a failure that none of its threads has seen.
  void fail_groups(const std::string& why);

  /// Leaves the world. Without an `error` it waits until the others have left too, so that no message to them is lost,
  /// unless one of them fails, does not answer or takes longer than `patience`. With an error only the store's host
  /// waits, briefly, for the others to read it.
  void leave(const std::string& error, std::chrono::milliseconds patience);

 private:
  class Loop;
  std::shared_ptr<Loop> loop_;
};

} // namespace trireme::comm
