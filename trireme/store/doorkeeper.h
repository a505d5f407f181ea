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
  /// The job's name, the same for all who may come in.
  std::string job = {};
  /// For warnings: "the parameter server".
  std::string who = {};
  /// Time for a connection to prove that it belongs to the job; then it is closed.
  std::chrono::milliseconds patience{5000};
  /// Largest number of connections that have not proved it yet; beyond it the oldest is closed.
  size_t most_strangers = 256;
};

/// Accepts connections, and lets in those who prove that they know the job's secret (handshake.h). A stranger may send
/// 64 bytes, and the first wrong one closes its connection. A warning, at most one a second, counts those that were
/// turned away. Never blocks: whoever owns it polls fd(), and calls serve() when it is readable or wake() has come.
class Doorkeeper {
 public:
  /// Errors: Error when the system refuses a descriptor.
  Doorkeeper(Descriptor listening, DoorkeeperOptions options);

  int fd() const {
    return events_.get();
  }
  int listening() const {
    return listening_.get();
  }
  /// When serve() is due at the latest; max for never.
  Clock::time_point wake() const;
  /// Returns the connections that have proved themselves since. They are non-blocking.
  std::vector<Descriptor> serve();
  /// Connections turned away so far.
  int64_t refused() const {
    return refused_;
  }

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
  /// Returns true when the stranger is to be let in.
  bool examine(uint64_t number, Stranger& stranger);
  void turn_away(uint64_t number, const std::string& why);
  void tell_refused();

  const DoorkeeperOptions options_;
  Descriptor listening_;
  Descriptor events_;
  /// Numbers grow, so the first stranger is the oldest.
  std::map<uint64_t, Stranger> strangers_;
  uint64_t next_number_ = 1;
  Clock::time_point rests_until_ = Clock::time_point::min();
  int64_t refused_ = 0;
  int64_t unreported_ = 0;
  std::string last_refusal_;
  Clock::time_point reported_at_{};
};

} // namespace trireme::store
