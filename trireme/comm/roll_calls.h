#pragma once

#include <trireme/base/stacks.h>
#include <trireme/comm/progress.h>
#include <trireme/comm/store.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace trireme::comm {

/// The key under which a rank publishes its PeerView.
std::string progress_key(int rank);
/// Makes every rank look and answer; returns the number that answers carry.
int64_t raise_pulse(Store& store);

/// The roll calls of this rank that are under way. Whoever asks adds one and waits for `changed`; the thread that talks to the store
/// goes on with all of them. Functions that say so are called with the mutex held.
class RollCalls {
 public:
  using Clock = std::chrono::steady_clock;

  /// One roll call. Only the store's thread touches the result before it is answered.
  struct Question {
    std::string key;
    RollCall result;
    Clock::time_point deadline;
    int64_t pulse = 0;
    bool stacks = false;
    bool answered = false;
    bool given_up = false;
  };

  RollCalls(int rank, int store_host, std::mutex& mutex, std::condition_variable& changed)
      : rank_(rank), store_host_(store_host), mutex_(mutex), changed_(changed) {}

  /// Asks these ranks, but not this one, about group `key`. With the mutex held.
  std::shared_ptr<Question> add(const std::vector<int>& ranks, const std::string& key, Clock::time_point deadline, bool stacks);
  /// With the mutex held.
  bool empty() const {
    return questions_.empty();
  }
  /// Gives all of them more time. With the mutex held.
  void postpone(Clock::duration by);

  /// Reads what has been answered. `dead`: ranks that will not answer. On the thread that talks to the store.
  void step(Store& store, const std::set<int>& dead);

 private:
  const int rank_;
  const int store_host_;
  const std::string own_place_ = process_place();
  std::mutex& mutex_;
  std::condition_variable& changed_;
  std::vector<std::shared_ptr<Question>> questions_;
};

} // namespace trireme::comm
