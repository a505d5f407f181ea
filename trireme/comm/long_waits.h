#pragma once

#include <trireme/comm/late_ranks.h>
#include <trireme/comm/roll_calls.h>
#include <trireme/comm/store.h>
#include <trireme/comm/watched_groups.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme::comm {

/// How long operations may take.
struct WaitLimits {
  /// An operation ends after this long.
  std::chrono::milliseconds end{0};
  /// The ranks are asked about an operation that takes this long, and again each time as much has passed. 0: never.
  std::chrono::milliseconds warn_after{0};
  /// An operation that no rank will complete ends when that is found, before `end`.
  bool gives_up = false;
};

/// Looks at operations that wait for long: a roll call shows whether ranks are late, which is a warning, or no rank
/// will come, which ends them.
///
/// Of the ranks that wait in one collective the first one asks; the others ask when as much time has passed again and
/// it has not. A warning comes once for an operation, and once for what a rank is late with; the lowest rank that
/// answers prints it, which is the one that launchers show. Cost: a few requests for each operation that lasts so long,
/// one roll call of all ranks, and both again each `warn_after`. Internal to Watch, whose thread makes all calls.
class LongWaits {
 public:
  using View = std::function<PeerView()>;

  LongWaits(int rank, int size, WaitLimits limits, const WatchedGroups& groups, RollCalls& roll_calls,
            std::mutex& mutex)
      : rank_(rank), size_(size), limits_(limits), groups_(groups), roll_calls_(roll_calls), mutex_(mutex) {}

  /// Asks about the operations that have waited for long, and judges the answers that are there. `view`: this rank's
  /// own.
  void step(Store& store, const View& view);

  /// Once for all ranks with the same `key`: lets the lowest of the `ranks` that answer print the warning.
  void warn_once(Store& store, const std::string& key, const std::map<int, PeerView>& ranks,
                 const std::string& text) const;
  /// Prints the warnings that this rank is asked to print. Call it when the pulse has changed.
  void print_warnings(Store& store);

  const WaitLimits& limits() const {
    return limits_;
  }

 private:
  /// A roll call about an operation.
  struct Look {
    std::weak_ptr<Watched> group;
    std::string key;
    GroupProgress::Waiting wait;
    std::shared_ptr<RollCalls::Question> question;
  };
  std::string name_of(const std::string& key, const GroupProgress::Waiting& wait) const;
  void look(Store& store);
  void conclude(Store& store, const Look& look, const View& view) const;
  std::string describe_late(const Look& look, const std::map<int, PeerView>& ranks, const std::vector<int>& late) const;

  const int rank_;
  const int size_;
  const WaitLimits limits_;
  const WatchedGroups& groups_;
  RollCalls& roll_calls_;
  std::mutex& mutex_;
  std::vector<Look> looks_;
  /// How often a roll call was due for each operation that waits.
  std::map<std::string, int64_t> due_;
  int64_t printed_ = 0;
};

} // namespace trireme::comm
