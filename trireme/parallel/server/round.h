#pragma once

#include <trireme/parallel/server/requests.h>
#include <trireme/parallel/server/shard.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme::parallel::server {

/// One step of workers that step together: their pushes, then the sum of those that count, then the step itself.
class Round {
 public:
  void push(int number, Waiting waiting) {
    if (pushes_.empty()) {
      first_push_ = rpc::Clock::now();
    }
    pushes_[number] = std::move(waiting);
  }
  bool has(int number) const {
    return pushes_.contains(number);
  }
  bool empty() const {
    return pushes_.empty();
  }
  rpc::Clock::duration since_first_push() const {
    return rpc::Clock::now() - first_push_;
  }
  /// Whether some worker looks at the sum before it is stepped with, by `commit`; the others have said all with push_pull.
  bool wants_commit() const {
    return std::any_of(pushes_.begin(), pushes_.end(), [](const auto& one) { return one.second.op() == "push"; });
  }
  const Waiting& first() const {
    return pushes_.begin()->second;
  }
  std::vector<int> numbers() const {
    std::vector<int> numbers;
    for (const auto& [number, one] : pushes_) {
      numbers.push_back(number);
    }
    return numbers;
  }

  /// Adds up the members' gradients, in the order of their numbers.
  void add_up(const std::vector<int>& members, Shard& shard) {
    shard.begin_sum();
    closed_ = true;
    members_ = members;
    for (const int number : members) {
      const Waiting& one = pushes_.at(number);
      if (one.op() == "push") {
        committers_.push_back(number);
      }
      shard.add(one.event.body, one.header.value("unused", std::vector<int64_t>()), counts_in(one.header));
      loss_ += number_in(one.header, "loss") / static_cast<double>(members.size());
      stop_ = stop_ || one.header.value("stop", false);
    }
    squared_norm_ = shard.squared_norm();
  }
  /// Of the sum.
  double squared_norm() const {
    return squared_norm_;
  }
  /// The sum is there, the step is not.
  bool closed() const {
    return closed_;
  }
  const std::vector<int>& members() const {
    return members_;
  }
  /// Members that will commit.
  const std::vector<int>& committers() const {
    return committers_;
  }
  bool is_member(int number) const {
    return std::find(members_.begin(), members_.end(), number) != members_.end();
  }
  /// Means of the members.
  double loss() const {
    return loss_;
  }
  bool stop() const {
    return stop_;
  }

  /// The answer to the members' pushes.
  nlohmann::json decision() const {
    return {{"status", "accepted"}, {"members", members_}, {"loss", loss_}, {"stop", stop_}, {"squared_norm", squared_norm_}};
  }

  /// Takes out the pushes that `wanted(number, waiting)` names.
  template <typename Wanted>
  std::vector<Waiting> take(const Wanted& wanted) {
    std::vector<Waiting> taken;
    for (auto it = pushes_.begin(); it != pushes_.end();) {
      if (wanted(it->first, it->second)) {
        taken.push_back(std::move(it->second));
        it = pushes_.erase(it);
      } else {
        ++it;
      }
    }
    return taken;
  }

 private:
  std::map<int, Waiting> pushes_; // by worker; not answered yet
  rpc::Clock::time_point first_push_;
  bool closed_ = false;
  std::vector<int> members_;
  std::vector<int> committers_;
  double squared_norm_ = 0;
  double loss_ = 0;
  bool stop_ = false;
};

} // namespace trireme::parallel::server
