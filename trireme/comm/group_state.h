#pragma once

#include <trireme/comm/device_operations.h>
#include <trireme/comm/explain.h>
#include <trireme/comm/group.h>
#include <trireme/comm/launch_order.h>
#include <trireme/comm/recorder.h>
#include <trireme/comm/routes.h>
#include <trireme/comm/watch.h>

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace trireme::comm {

/// State shared by all copies of a Group. Internal to comm/.
class Group::State : public Watched, public std::enable_shared_from_this<Group::State> {
 public:
  /// Opens a group of these world ranks under a name and a key. The world owns the group and closes it before ending.
  using Open = std::function<Group(const std::vector<int>& ranks, const std::string& name, const std::string& key)>;

  /// `key` is unique in the world; `watch` is null if no other rank can be queried, `open` if there is no other rank,
  /// `order` without TRIREME_CHECK. `device_timeout`: of operations that a device was given, if another one.
  State(std::string name, std::string key, std::vector<int> members, std::unique_ptr<Routes> routes,
        std::chrono::milliseconds timeout, std::shared_ptr<Watch> watch, int world_size, Open open = nullptr,
        std::shared_ptr<LaunchOrder> order = nullptr,
        std::optional<std::chrono::milliseconds> device_timeout = std::nullopt);
  ~State() override;

  const std::string& name() const override { return name_; }
  int rank() const { return routes_->host().rank(); }
  int size() const { return static_cast<int>(members_.size()); }
  Routes& routes() const { return *routes_; }

  using Ticket = OpTicket;
  /// Numbers and records an operation. Errors: PeerError when the group has failed before, Error when it is closed.
  Ticket begin(const char* op, int64_t bytes, at::ScalarType dtype, std::string_view what, int peer,
               const char* detail);
  /// With TRIREME_CHECK=1: compares the operation with the other ranks' before it starts, and if it is `launched` on a
  /// device its place in the order of all groups of these ranks. Throws what failed() returns.
  void check(const Ticket& ticket, bool launched);
  void succeeded(const Ticket& ticket);
  /// Makes the watch follow an operation that a device was given. Null without a watch.
  std::shared_ptr<DeviceOperations::Entry> follow(const Ticket& ticket, std::shared_ptr<DeviceMark> mark);
  /// No thread waits any more for an operation followed by the watch.
  void on_device(const Ticket& ticket);
  /// Finds the ranks that caused the failure, informs the other ranks and returns the error to throw.
  PeerError failed(const Ticket& ticket, const Trouble& trouble);
  /// Reports that this rank fails for a reason of its own.
  void report_failure(const std::string& why);
  /// For an operation dropped without wait(), after its end: whether it failed is unknown, and not
  /// reported.
  void abandoned(const Ticket& ticket);

  const std::string& key() const override { return key_; }
  const std::vector<int>& members() const override { return members_; }
  GroupProgress progress() const override;
  int64_t version() const override { return version_; }
  void follow_device() override;
  std::optional<GroupProgress::WaitedOperation> waiting() const override;
  void give_up(const GroupProgress::WaitedOperation& wait, double limit) override;
  void interrupt() override;
  void fail(const std::string& why) override;
  void close();
  /// Opens a group of some of the members, given by world rank.
  Group open(const std::vector<int>& ranks, const std::string& name);

 private:
  struct Awaited;

 public:
  /// Marks the operation as waited for while the object lives: three stores, an exchange and a clock read.
  class WaitMark {
   public:
    WaitMark(State& state, const Ticket& ticket);
    ~WaitMark();
    WaitMark(const WaitMark&) = delete;
    WaitMark& operator=(const WaitMark&) = delete;

   private:
    Awaited* place_ = nullptr;
  };

 private:
  /// How an operation failed.
  struct Failure {
    OpSummary op;
    Trouble trouble;
    /// How long it has lasted.
    std::chrono::milliseconds waited;
    /// Above 0: given up by the watch, and a failure only if judge() still finds it hopeless. A rank may have joined
    /// since.
    double limit = 0;
  };
  /// Compares the order of launches. Throws the difference as an error of this operation, reported to the other ranks.
  void check_order(const Ticket& ticket);
  /// Explains and reports, on its own thread, a failure that the watch found, and ends all groups of this rank. A
  /// separate thread, because the watch's thread collects the other ranks' answers. With the lock held.
  void start_report(const Failure& failure);
  void report(const Failure& failure) noexcept;
  /// nullopt: not hopeless.
  std::optional<PeerError> explained(const Failure& failure);
  /// Nothing is left to report. With the lock held.
  bool over() const { return closed_ || !broken_.empty() || explaining_ || reporting_; }
  /// progress_ has changed: the caller holds the lock.
  void changed() { version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  /// True if the answers of the other ranks show that none will complete what this one waits for.
  bool is_hopeless(const Asker& asker, const Failure& failure, const RollCall& roll_call) const;
  std::optional<Hang> hang(const Asker& asker, const OpSummary& op, const RollCall& roll_call) const;

  const std::string name_;
  /// The name for records, which outlive the group.
  const char* const kept_name_;
  const std::string key_;
  const std::vector<int> members_;
  const std::unique_ptr<Routes> routes_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds device_timeout_;
  const std::shared_ptr<Watch> watch_;
  const int world_size_;
  const Open open_;
  const std::shared_ptr<LaunchOrder> order_;
  int opened_ = 0;

  mutable std::mutex mutex_;
  GroupProgress progress_;
  std::atomic<int64_t> version_{0};
  /// An operation that a thread waits for.
  struct Awaited {
    /// Twice its number, plus 1 for a message; 0: none, -1: about to be set.
    std::atomic<int64_t> what{0};
    std::atomic<int64_t> since_ns{0};
  };
  /// One per waiting thread; further threads are not seen.
  std::array<Awaited, 4> awaited_;
  const bool checks_;
  std::mutex failing_;
  /// The first failure, "" without one, and the error of the operation that failed first.
  std::string broken_;
  std::optional<std::pair<OpSummary, PeerError>> first_error_;
  bool closed_ = false;
  DeviceOperations device_operations_;
  /// A thread looks for the cause of a failure.
  std::atomic<bool> explaining_{false};
  /// The reporter is at work.
  std::atomic<bool> reporting_{false};
  std::thread reporter_;
};

} // namespace trireme::comm
