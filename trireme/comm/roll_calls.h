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
/// Requests an answer of every rank; returns the number that the answers carry.
int64_t raise_pulse(Store& store);

/// The running roll calls of this rank. The caller adds one and waits for `changed`; the store's thread advances all of
/// them. Some functions need the mutex held, as noted.
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
  std::shared_ptr<Question> add(const std::vector<int>& ranks, const std::string& key, Clock::time_point deadline,
                                bool stacks);
  /// With the mutex held.
  bool empty() const { return questions_.empty(); }
  /// Extends all deadlines. With the mutex held.
  void postpone(Clock::duration by);

  /// Reads the answers. `dead`: ranks that will not answer. Called on the thread that talks to the store.
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
