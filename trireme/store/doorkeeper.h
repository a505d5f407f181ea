#pragma once

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/store/handshake.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trireme::store {

struct DoorkeeperOptions {
  Secret secret = {};
  /// The job's name, the same for all its processes.
  std::string job = {};
  /// Subject of warnings: "the parameter server".
  std::string who = {};
  /// Time in which a connection must prove that it belongs to the job; then it is closed.
  std::chrono::milliseconds patience{5000};
  /// Limit of unproved connections; beyond it the oldest is closed.
  size_t most_strangers = 256;
};

/// Accepts connections that prove that they know the job's secret (handshake.h). Until then a connection may send 64
/// bytes, and the first wrong byte closes it. A warning, at most one per second, counts refused connections. Never
/// blocks: the owner polls fd(), and calls serve() when it is readable or at wake().
class Doorkeeper {
 public:
  /// Errors: Error if the system refuses a descriptor.
  Doorkeeper(Descriptor listening, DoorkeeperOptions options);

  int fd() const { return events_.get(); }
  int listening() const { return listening_.get(); }
  /// Latest time of the next serve(); max for never.
  Clock::time_point wake() const;
  /// Returns newly proved connections, non-blocking.
  std::vector<Descriptor> serve();
  /// Connections refused so far.
  int64_t refused() const { return refused_; }

 private:
  struct Stranger {
    Descriptor socket;
    std::string peer;
    Greeting greeting{};
    std::string in;
    Clock::time_point since;
  };
  void accept_some();
  void rest(Clock::time_point until);
  /// Returns true if the connection is proved.
  bool examine(uint64_t number, Stranger& stranger);
  void turn_away(uint64_t number, const std::string& why);
  void tell_refused();

  const DoorkeeperOptions options_;
  Descriptor listening_;
  Descriptor events_;
  /// Numbers grow, so the first one is the oldest.
  std::map<uint64_t, Stranger> strangers_;
  uint64_t next_number_ = 1;
  Clock::time_point rests_until_ = Clock::time_point::min();
  int64_t refused_ = 0;
  int64_t unreported_ = 0;
  std::string last_refusal_;
  Clock::time_point reported_at_{};
};

} // namespace trireme::store
