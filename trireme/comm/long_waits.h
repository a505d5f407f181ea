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
  /// Longest duration of an operation.
  std::chrono::milliseconds end{0};
  /// The same of one that a device was given, whose kernel holds a part of it meanwhile.
  std::chrono::milliseconds end_on_device{0};
  /// Operations of this duration start a roll call, and again after each such interval. 0: never.
  std::chrono::milliseconds warn_after{0};
  /// Ends an operation that no rank will complete once that is known, before `end`.
  bool gives_up = false;
};

/// Checks operations that wait long by a roll call: late ranks give a warning; if no rank will complete the operation,
/// it ends.
///
/// The first rank that waits in a collective asks; the others ask after the same time again if it has not. A warning is
/// given once per operation, and once for what a rank is late with. The lowest rank that answers prints it, because
/// launchers show that one. Cost: a few requests per such operation and one roll call of all ranks, both repeated every
/// `warn_after`. Internal to Watch, whose thread makes all calls.
class LongWaits {
 public:
  using View = std::function<PeerView()>;

  LongWaits(int rank, int size, WaitLimits limits, const WatchedGroups& groups, RollCalls& roll_calls,
            std::mutex& mutex)
      : rank_(rank), size_(size), limits_(limits), groups_(groups), roll_calls_(roll_calls), mutex_(mutex) {}

  /// Starts roll calls about long waits, and judges the answers so far. `view`: this rank's
  /// own.
  void step(Store& store, const View& view);

  /// Once for all ranks with the same `key`: the lowest of the answering `ranks` prints the warning.
  void warn_once(Store& store, const std::string& key, const std::map<int, PeerView>& ranks,
                 const std::string& text) const;
  /// Prints the warnings assigned to this rank. Call it when the pulse has changed.
  void print_warnings(Store& store);

  const WaitLimits& limits() const { return limits_; }

 private:
  /// A roll call about an operation.
  struct Look {
    std::weak_ptr<Watched> group;
    std::string key;
    GroupProgress::WaitedOperation wait;
    std::shared_ptr<RollCalls::Question> question;
  };
  std::string name_of(const std::string& key, const GroupProgress::WaitedOperation& wait) const;
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
  /// Roll calls due so far, by waiting operation.
  std::map<std::string, int64_t> due_;
  int64_t printed_ = 0;
};

} // namespace trireme::comm
