#pragma once

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/store/handshake.h>
#include <trireme/store/requests.h>
#include <trireme/store/server.h>
#include <trireme/store/table.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::store {

/// The thread of a Server and its private state.
class Server::Loop {
 public:
  Loop(int listening, ServerOptions options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> connections{0};

 private:
  struct Connection {
    Descriptor socket;
    std::string peer;
    Greeting greeting{};
    bool trusted = false;
    /// In a wait: no request is read until its reply is sent.
    bool parked = false;
    std::string in;
    std::string out;
    std::optional<LastWill> will;
    Clock::time_point since;
    /// End of the time for a proof, or of a wait; max for neither.
    Clock::time_point deadline = Clock::time_point::max();
    uint32_t interest = 0;
  };

  void run();
  void wait_for_events();
  int milliseconds_to_next() const;
  void accept_some();
  void rest_listener(Clock::time_point until);
  void wake_listener();
  void serve(uint64_t number, uint32_t events);
  void receive(uint64_t number, Connection& connection);
  void examine(uint64_t number, Connection& connection);
  void handle_requests(uint64_t number, Connection& connection);
  void carry_out_one(uint64_t number, Connection& connection, std::string_view request);
  void send_rest(Connection& connection);
  void reply_to_ready();
  void finish_wait(uint64_t number, bool all_there);
  void expire();
  void set_deadline(uint64_t number, Connection& connection, Clock::time_point deadline);
  void watch(uint64_t number, Connection& connection);
  void turn_away(uint64_t number, const std::string& why);
  void end(uint64_t number);
  void drop_ended();
  void drop(uint64_t number);
  void tell_refused(bool at_end);

  const ServerOptions options_;
  Descriptor listening_;
  Descriptor events_;
  Descriptor wake_;
  std::atomic<bool> stopping_{false};

  std::vector<char> buffer_;
  Table table_;
  std::unordered_map<uint64_t, Connection> connections_;
  /// Numbers grow, so the first one is the oldest.
  std::set<uint64_t> strangers_;
  std::set<std::pair<Clock::time_point, uint64_t>> deadlines_;
  /// Closed when no function uses them any more.
  std::set<uint64_t> ending_;
  uint64_t next_number_;
  std::optional<Clock::time_point> listener_rests_until_;
  /// Accepting pauses because of too many unproved connections, until one of them is closed.
  bool listener_waits_for_room_ = false;
  int64_t unreported_ = 0;
  std::string last_refusal_;
  Clock::time_point reported_at_{};
  std::thread thread_;
};

} // namespace trireme::store
