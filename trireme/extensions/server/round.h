#pragma once

#include <trireme/extensions/server/requests.h>
#include <trireme/extensions/server/shard.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::parallel::server {

/// One synchronous step: the workers' pushes, the sum of those that count, then the update.
class Round {
 public:
  void push(int number, const PendingRequest& waiting) {
    if (pushes_.empty()) {
      first_push_ = rpc::Clock::now();
    }
    pushes_[number] = {waiting, false, {}};
    is_added_up_ = false;
    remove_committer(number); // a worker that pushes again does not know the sum
  }
  /// Invalidates the sum, because this worker's push was removed and the sum contains its gradient.
  void reopen(int number) {
    is_added_up_ = false;
    remove_committer(number);
  }
  bool has(int number) const { return pushes_.contains(number); }
  bool empty() const { return pushes_.empty(); }
  rpc::Clock::duration since_first_push() const { return rpc::Clock::now() - first_push_; }
  /// True if a worker needs the sum before the step and sends `commit`. A `push_pull` already contains how to step.
  bool wants_commit() const {
    return std::any_of(pushes_.begin(), pushes_.end(), [](const auto& one) { return is_push(one.second.waiting); });
  }
  std::vector<int> numbers() const {
    std::vector<int> numbers;
    for (const auto& [number, one] : pushes_) {
      numbers.push_back(number);
    }
    return numbers;
  }

  /// Sums the members' gradients in the order of their numbers. May be repeated for other members if all their pushes
  /// are here.
  void add_up(const std::vector<int>& members, Shard& shard) {
    shard.begin_sum();
    is_added_up_ = true;
    members_ = members;
    loss_ = 0;
    stop_ = false;
    for (const int number : members) {
      const PendingRequest& one = pushes_.at(number).waiting;
      shard.add(one.event.body, one.header.value("unused", std::vector<int64_t>()), counts_in(one.header));
      loss_ += number_in(one.header, "loss") / static_cast<double>(members.size());
      stop_ = stop_ || one.header.value("stop", false);
    }
    squared_norm_ = shard.squared_norm();
  }
  bool is_added_up() const { return is_added_up_; }
  /// Fixes the members: server 0 has decided.
  void close() {
    closed_ = true;
    asked_ = rpc::Clock::now();
  }
  bool closed() const { return closed_; }
  /// Squared norm of the sum.
  double squared_norm() const { return squared_norm_; }
  const std::vector<int>& members() const { return members_; }
  bool is_member(int number) const { return std::find(members_.begin(), members_.end(), number) != members_.end(); }
  /// Mean loss of the members.
  double loss() const { return loss_; }
  bool stop() const { return stop_; }

  /// Members that know the sum and will commit.
  const std::vector<int>& committers() const { return committers_; }
  void add_committer(int number) { committers_.push_back(number); }
  void remove_committer(int number) { std::erase(committers_, number); }
  /// Time since the round was closed, or since a worker was last asked to commit.
  rpc::Clock::duration since_asked() const { return rpc::Clock::now() - asked_; }
  /// Marks this member's push as answered: the caller sends it the sum and asks it to commit. `keeps`: copies the body,
  /// whose memory is only valid until the answer. Its gradient may be summed again.
  PendingRequest ask(int number, bool keeps) {
    Push& one = pushes_.at(number);
    PendingRequest waiting = one.waiting;
    one.is_answered = true;
    if (keeps) {
      one.kept.assign(waiting.event.body.begin(), waiting.event.body.end());
      one.waiting.event.body = one.kept;
    }
    committers_.push_back(number);
    asked_ = rpc::Clock::now();
    return waiting;
  }
  /// Returns the first member with an unanswered `push` for which `can(number, push)` holds.
  template <typename Can>
  std::optional<int> candidate(const Can& can) const {
    for (const auto& [number, one] : pushes_) {
      if (is_push(one.waiting) && !one.is_answered && is_member(number) && can(number, one.waiting)) {
        return number;
      }
    }
    return std::nullopt;
  }
  /// Returns the first `push_pull`, which contains how to step.
  const PendingRequest* first_that_said_all() const {
    const auto found =
        std::find_if(pushes_.begin(), pushes_.end(), [](const auto& one) { return !is_push(one.second.waiting); });
    return found == pushes_.end() ? nullptr : &found->second.waiting;
  }

  /// The response to the members' pushes.
  nlohmann::json decision() const {
    return {{"status", "accepted"},
            {"members", members_},
            {"loss", loss_},
            {"stop", stop_},
            {"squared_norm", squared_norm_}};
  }

  /// Removes the pushes for which `wanted(number, waiting)` holds, and returns the unanswered ones.
  template <typename Wanted>
  std::vector<std::pair<int, PendingRequest>> take(const Wanted& wanted) {
    std::vector<std::pair<int, PendingRequest>> taken;
    for (auto it = pushes_.begin(); it != pushes_.end();) {
      if (wanted(it->first, it->second.waiting)) {
        if (!it->second.is_answered) {
          taken.emplace_back(it->first, std::move(it->second.waiting));
        }
        it = pushes_.erase(it);
      } else {
        ++it;
      }
    }
    return taken;
  }

 private:
  struct Push {
    PendingRequest waiting;
    bool is_answered = false;
    std::vector<std::byte> kept;
  };
  static bool is_push(const PendingRequest& waiting) { return waiting.op() == "push"; }

  std::map<int, Push> pushes_; // by worker
  rpc::Clock::time_point first_push_;
  bool is_added_up_ = false;
  bool closed_ = false;
  std::vector<int> members_;
  std::vector<int> committers_;
  rpc::Clock::time_point asked_;
  double squared_norm_ = 0;
  double loss_ = 0;
  bool stop_ = false;
};

} // namespace trireme::parallel::server
