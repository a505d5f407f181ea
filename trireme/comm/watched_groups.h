#pragma once

#include <trireme/comm/progress.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme::comm {

/// The interface of a group to its Watch.
class Watched {
 public:
  virtual ~Watched() = default;
  /// The same on all ranks, unique in the world.
  virtual const std::string& key() const = 0;
  virtual const std::string& name() const = 0;
  virtual const std::vector<int>& members() const = 0;
  virtual GroupProgress progress() const = 0;
  /// Grows whenever progress() changes.
  virtual int64_t version() const = 0;
  /// progress().waiting, without the cost of the rest.
  virtual std::optional<GroupProgress::WaitedOperation> waiting() const = 0;
  /// Ends the waiting operation, unless judge() with this limit (late_ranks.h) does not find it hopeless any more.
  /// Returns at once.
  virtual void give_up(const GroupProgress::WaitedOperation& wait, double limit) = 0;
  /// Polls the device for operations that no thread waits for, and reports unfinished ones that are late.
  virtual void follow_device() = 0;
  /// Makes waiting operations fail.
  virtual void interrupt() = 0;
  /// The same, for later operations too, because this rank has failed in another group.
  virtual void fail(const std::string& why) = 0;
};

/// The groups of this rank that still exist. Thread-safe.
class WatchedGroups {
 public:
  void add(std::weak_ptr<Watched> group);
  /// Grows whenever a group is added or the progress of one changes.
  int64_t version() const;
  /// This rank's progress in each group, by key.
  std::map<std::string, GroupView> views() const;
  void follow_devices() const;
  /// A group of this rank and the operation that it waits in.
  struct LongWait {
    std::shared_ptr<Watched> group;
    GroupProgress::WaitedOperation wait;
  };
  /// The operations awaited for at least this many seconds.
  std::vector<LongWait> waits(double seconds) const;
  /// Interrupts the groups that contain one of these world ranks.
  void interrupt(const std::set<int>& ranks) const;
  void fail(const std::string& why) const;

 private:
  std::vector<std::shared_ptr<Watched>> live() const;

  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Watched>> groups_;
};

} // namespace trireme::comm
