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

/// The workers of a server: who is there, who is gone, and who has not come yet.
class Workers {
 public:
  /// How long workers that have not joined are waited for after the first one: at the start of a job, and after a
  /// server's restart, when the others are there already.
  static constexpr std::chrono::seconds kComes{120};
  static constexpr std::chrono::seconds kComesAgain{15};
  /// How long one whose connection broke is waited for where another server has counted its gradient.
  static constexpr std::chrono::seconds kConnectsAgain{2};

  /// Worker `number` of `workers` comes over this connection, perhaps not for the first time. `lives`: the same process
  /// as before, whose connection broke; `restarted`: another one after it.
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
    worker.pushes = others.value_or(worker.pushes); // it does not hold up the others by steps that it has not made
    worker.restarted = restarted;
    worker.returned = !lives && (restarted || made_.contains(number));
    int64_t& made = made_[number];
    if (worker.returned) { // goes on where the others are
      made = std::max(made, slowest_made(number).value_or(0));
    }
  }
  void leave(int number) {
    all_.at(number).client.reset();
  }
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
  /// Is there, or may still come.
  bool may_push(int number) const {
    return is_there(number) || (!all_.contains(number) && awaits_any());
  }
  /// Whether its gradient for this step of the first server, or, where that is not known, its next one, may still come.
  bool may_bring(int number, std::optional<int64_t> step) const {
    const auto found = all_.find(number);
    const bool connects_again =
        found != all_.end() && found->second.lost_at && rpc::Clock::now() < *found->second.lost_at + kConnectsAgain;
    return (may_push(number) || connects_again) && !(step && is_past(number, *step));
  }
  /// The one with the lowest number that is there, or may still come.
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
  uint64_t client_of(int number) const {
    return all_.at(number).client.value();
  }
  bool is_restarted(int number) const {
    return all_.at(number).restarted;
  }
  /// Those that have joined over this connection.
  std::vector<int> of(uint64_t client) const {
    std::vector<int> numbers = there();
    std::erase_if(numbers, [&](int number) { return !is_of(number, client); });
    return numbers;
  }
  /// A worker that has not come yet is waited for, but not for ever, because it may have died before.
  bool awaits_any() const {
    return std::ssize(all_) < expected_ && rpc::Clock::now() < awaited_until_;
  }
  bool all_have_ended() const {
    return !all_.empty() && !awaits_any() && there().empty();
  }

  void count_push(int number) {
    ++all_.at(number).pushes;
    ++made_[number];
  }
  /// It trains. `step`: of the first server, where the worker has said it.
  void has_pushed(int number, std::optional<int64_t> step = std::nullopt) {
    all_.at(number).returned = false;
    all_.at(number).behind_it = step;
  }
  /// It goes on with the values after this step of the first server.
  void has_behind_it(int number, int64_t step) {
    all_.at(number).behind_it = step;
  }
  /// Whether it has no gradient for this step of the first server any more.
  bool is_past(int number, int64_t step) const {
    const auto found = all_.find(number);
    return found != all_.end() && found->second.behind_it >= step;
  }
  /// Whether it is a process that was started again, and has not trained since.
  bool has_returned(int number) const {
    const auto found = all_.find(number);
    return found != all_.end() && found->second.returned;
  }
  /// Steps since the last load of each worker that was ever there, for those that do not wait for each other: one that
  /// is started again begins where the slowest other one is.
  const std::map<int, int64_t>& made() const {
    return made_;
  }
  void set_made(std::map<int, int64_t> made) {
    made_ = std::move(made);
  }
  int64_t made(int number) const {
    const auto found = made_.find(number);
    return found == made_.end() ? 0 : found->second;
  }
  /// A load: all of them go on from it.
  void begin_anew() {
    for (auto& [number, worker] : all_) {
      worker.pushes = 0;
    }
    for (auto& [number, made] : made_) {
      made = 0;
    }
  }
  /// Pushes of a worker more than of the slowest that is there.
  int64_t ahead(int number) const {
    const int64_t own = all_.at(number).pushes;
    return own - slowest().value_or(own);
  }

 private:
  struct Worker {
    std::optional<uint64_t> client; // none: gone, or it has left
    int64_t pushes = 0;
    std::optional<rpc::Clock::time_point> lost_at;
    bool restarted = false;
    bool returned = false;
    std::optional<int64_t> behind_it; // the last step of the first server that it has had a gradient for
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
