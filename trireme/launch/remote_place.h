#pragma once

#include <trireme/launch/agent_connection.h>
#include <trireme/launch/lease.h>
#include <trireme/launch/messages.h>
#include <trireme/launch/place.h>

#include <exception>
#include <functional>
#include <memory>

namespace trireme::launch {

/// How to reach the agent of a host, and its first order.
struct AgentSetup {
  /// Name in the hostfile.
  std::string host;
  /// Command that starts the agent: ssh and its arguments, or the agent itself on this machine.
  std::vector<std::string> command;
  /// The order "job"; see agent.cpp.
  Message job;
  /// A host without a message for this long is lost.
  double heartbeat_timeout = 5;
  /// The host ends its ranks after this long without an answer of the launcher; see lease.h.
  double lease_seconds = kHeartbeatsOfALease * 5;
};

/// Ranks on another machine, through an agent that `command` starts there. The agent's standard
/// input and output are the connection (agent_process.h): no port is opened. An agent kills its
/// ranks when its input ends or its lease expires (lease.h). The host is lost when the
/// connection ends, or when no message arrives within the time-out (heartbeats come twice per
/// second). Its ranks may then run until leased_until(), unless agent or guardian have reported
/// "gone".
class RemotePlace : public Place {
 public:
  using Say = std::function<void(const std::string& words)>;

  /// `connection`: to the agent that setup.command has started.
  RemotePlace(AgentSetup setup, std::unique_ptr<AgentConnection> connection, Say say);
  void dismiss() override { connection_->dismiss(); }

  State state() const override { return state_; }
  const std::string& why_lost() const override { return why_lost_; }
  void listen(const std::string& address, int ranks) override;
  std::optional<Ports> ports() const override { return ports_; }
  void start(const Share& share, PlaceEvents& events) override;
  void signal(int number) override;
  void stop(int number) override;
  void kill() override;

  void add_to(std::vector<pollfd>& polled) const override;
  void serve(const std::vector<pollfd>& polled) override;
  void advance() override;
  std::optional<Clock::time_point> wake() const override;
  std::optional<Clock::time_point> leased_until() const override { return may_run_ ? lease_.over_at() : std::nullopt; }

 private:
  void send(const Message& order);
  void read(std::string_view bytes);
  void handle(const Message& event);
  void answer(const Message& event);
  bool has(int rank) const;
  void lose(const std::string& why);

  AgentSetup setup_;
  std::unique_ptr<AgentConnection> connection_;
  Say say_;
  AgentConnection::Listener listener_;
  MessageReader reader_;

  State state_ = State::connecting;
  std::string why_lost_;
  std::exception_ptr refusal_;
  std::optional<Ports> ports_;
  PlaceEvents* events_ = nullptr;
  Share share_;
  bool held_ = false;
  bool kill_sent_ = false;
  bool gone_ = false;
  bool may_run_ = false;
  GrantedLease lease_;
  std::optional<Clock::time_point> listen_at_;
  Clock::time_point started_at_;
  Clock::time_point heard_at_;
  Clock::time_point looked_at_;
};

} // namespace trireme::launch
