#pragma once

#include <trireme/comm/watched_groups.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

namespace trireme::comm {

/// A group that is being opened while this rank waits for its members. For the watch it is an operation that the
/// missing members have not joined.
class Opening : public Watched {
 public:
  /// `key`: the same on all members, unique in the world. Members are world ranks.
  Opening(std::string key, std::string name, std::vector<int> members);

  /// True if waiting is useless: a member has failed, or will never join.
  bool over() const { return over_; }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count(); }

  const std::string& key() const override { return key_; }
  const std::string& name() const override { return name_; }
  const std::vector<int>& members() const override { return members_; }
  GroupProgress progress() const override;
  int64_t version() const override { return 0; }
  std::optional<GroupProgress::WaitedOperation> waiting() const override {
    return GroupProgress::WaitedOperation{1, false, seconds()};
  }
  void give_up(const GroupProgress::WaitedOperation& /*wait*/, double /*limit*/) override { over_ = true; }
  void follow_device() override {}
  void interrupt() override { over_ = true; }
  void fail(const std::string& /*why*/) override { over_ = true; }

 private:
  const std::string key_;
  const std::string name_;
  const std::vector<int> members_;
  const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  std::atomic<bool> over_{false};
};

} // namespace trireme::comm
