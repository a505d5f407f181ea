#pragma once

#include <trireme/extensions/server/rpc/rpc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::parallel::server {

/// A server's workers: present, lost, or still expected.
class Workers {
 public:
  /// How long to wait for workers that have not joined, after the first one has: at the start of a job, and after a
  /// restart of the server, when the workers are already running.
  static constexpr std::chrono::seconds kComes{120};
  static constexpr std::chrono::seconds kComesAgain{15};
  /// How long to wait for a worker whose connection broke, if another server has counted its gradient.
  static constexpr std::chrono::seconds kConnectsAgain{2};

  /// Adds worker `number` of `workers`, perhaps again. `lives`: the same process as before, whose connection broke.
  /// `restarted`: a new process after it.
  void join(int number, int workers, uint64_t client, bool after_restart, bool lives, bool restarted) {
    if (all_.empty()) {
      awaited_until_ = rpc::Clock::now() + (after_restart ? kComesAgain : kComes);
    }
    expected_ = std::max<int64_t>(expected_, workers);
    const std::optional<int64_t> others = slowest(number);
    Worker& worker = all_[number];
    worker.client = client;
    worker.behind_it.reset();
    worker.lost_at.reset();
    worker.pushes = others.value_or(worker.pushes); // steps that it has not made do not hold up the others
    worker.restarted = restarted;
    worker.returned = !lives && (restarted || made_.contains(number));
    int64_t& made = made_[number];
    if (worker.returned) { // continues where the others are
      made = std::max(made, slowest_made(number).value_or(0));
    }
  }
  void leave(int number) { all_.at(number).client.reset(); }
  /// Its connection broke: it may have ended.
  void lose(int number) {
    leave(number);
    all_.at(number).lost_at = rpc::Clock::now();
  }
  bool is_there(int number) const {
    const auto found = all_.find(number);
    return found != all_.end() && found->second.client.has_value();
  }
  bool is_of(int number, uint64_t client) const {
    const auto found = all_.find(number);
    return found != all_.end() && found->second.client == client;
  }
  /// True if it is present or still expected.
  bool may_push(int number) const { return is_there(number) || (!all_.contains(number) && awaits_any()); }
  /// True if its gradient for this step of server 0 may still come; without a step: its next gradient.
  bool may_bring(int number, std::optional<int64_t> step) const {
    const auto found = all_.find(number);
    const bool connects_again =
        found != all_.end() && found->second.lost_at && rpc::Clock::now() < *found->second.lost_at + kConnectsAgain;
    return (may_push(number) || connects_again) && !(step && is_past(number, *step));
  }
  /// The lowest number that is present or still expected.
  int first() const {
    int number = 0;
    while (number < expected_ && !may_push(number)) {
      ++number;
    }
    return number;
  }
  bool any_is_there(const std::vector<int>& numbers) const {
    return std::any_of(numbers.begin(), numbers.end(), [this](int number) { return is_there(number); });
  }
  std::vector<int> there() const {
    std::vector<int> numbers;
    for (const auto& [number, worker] : all_) {
      if (worker.client) {
        numbers.push_back(number);
      }
    }
    return numbers;
  }
  uint64_t client_of(int number) const { return all_.at(number).client.value(); }
  bool is_restarted(int number) const { return all_.at(number).restarted; }
  /// Numbers that have joined over this connection.
  std::vector<int> of(uint64_t client) const {
    std::vector<int> numbers = there();
    std::erase_if(numbers, [&](int number) { return !is_of(number, client); });
    return numbers;
  }
  /// True while workers are still expected. The wait is limited, because a worker may have died before it joined.
  bool awaits_any() const { return std::ssize(all_) < expected_ && rpc::Clock::now() < awaited_until_; }
  bool all_have_ended() const { return !all_.empty() && !awaits_any() && there().empty(); }

  void count_push(int number) {
    ++all_.at(number).pushes;
    ++made_[number];
  }
  /// The worker trains. `step`: server 0's clock, if the worker sent it.
  void has_pushed(int number, std::optional<int64_t> step = std::nullopt) {
    all_.at(number).returned = false;
    all_.at(number).behind_it = step;
  }
  /// The worker continues with the values after this step of server 0.
  void has_behind_it(int number, int64_t step) { all_.at(number).behind_it = step; }
  /// True if it will not send a gradient for this step of server 0 any more.
  bool is_past(int number, int64_t step) const {
    const auto found = all_.find(number);
    return found != all_.end() && found->second.behind_it >= step;
  }
  /// True if it is a restarted process that has not trained since.
  bool has_returned(int number) const {
    const auto found = all_.find(number);
    return found != all_.end() && found->second.returned;
  }
  /// Steps of each worker since the last load, for modes in which workers do not wait for each other. A restarted
  /// worker continues where the slowest other one is.
  const std::map<int, int64_t>& made() const { return made_; }
  void set_made(std::map<int, int64_t> made) { made_ = std::move(made); }
  int64_t made(int number) const {
    const auto found = made_.find(number);
    return found == made_.end() ? 0 : found->second;
  }
  /// A load: all workers continue from it.
  void begin_anew() {
    for (auto& [number, worker] : all_) {
      worker.pushes = 0;
    }
    for (auto& [number, made] : made_) {
      made = 0;
    }
  }
  /// Number of pushes by which a worker is ahead of the slowest one that is present.
  int64_t ahead(int number) const {
    const int64_t own = all_.at(number).pushes;
    return own - slowest().value_or(own);
  }

 private:
  struct Worker {
    std::optional<uint64_t> client; // none: lost, or it has left
    int64_t pushes = 0;
    std::optional<rpc::Clock::time_point> lost_at;
    bool restarted = false;
    bool returned = false;
    std::optional<int64_t> behind_it; // last step of server 0 for which it has sent a gradient
  };

  std::optional<int64_t> slowest_made(int but) const {
    std::optional<int64_t> least;
    for (const auto& [number, worker] : all_) {
      if (worker.client && number != but) {
        least = std::min(least.value_or(made(number)), made(number));
      }
    }
    return least;
  }

  std::optional<int64_t> slowest(std::optional<int> but = std::nullopt) const {
    std::optional<int64_t> least;
    for (const auto& [number, worker] : all_) {
      if (worker.client && number != but) {
        least = std::min(least.value_or(worker.pushes), worker.pushes);
      }
    }
    return least;
  }

  std::map<int, Worker> all_;
  std::map<int, int64_t> made_;
  int64_t expected_ = 1;
  rpc::Clock::time_point awaited_until_;
};

} // namespace trireme::parallel::server
