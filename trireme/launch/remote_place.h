#pragma once

#include <trireme/launch/descriptor.h>
#include <trireme/launch/lines.h>
#include <trireme/launch/messages.h>
#include <trireme/launch/place.h>
#include <trireme/launch/screen.h>
#include <trireme/launch/signals.h>

#include <exception>
#include <functional>

namespace trireme::launch {

/// How to reach the agent of a host, and its first order.
struct AgentSetup {
  /// Name in the hostfile.
  std::string host;
  /// Command that starts the agent: ssh and its arguments, or the agent itself on this machine.
  std::vector<std::string> command;
  /// The order "job"; see agent.cpp.
  Message job;
  /// A host that is silent for so long is lost.
  double heartbeat_timeout = 5;
};

/// Ranks on another machine, through an agent that `command` starts there. The agent's standard input and output are the connection:
/// no port is opened. An agent kills its ranks when its input ends or brings nothing for a minute.
/// The host is lost when the connection ends, or when no message (the heartbeat comes twice a second) arrives within the time-out.
class RemotePlace : public Place {
 public:
  using Say = std::function<void(const std::string& words)>;

  RemotePlace(AgentSetup setup, const SignalWatch& signals, Say say);
  /// Ends the agent.
  ~RemotePlace() override;
  /// Lets the agent end; the destructor waits for it.
  void dismiss();

  State state() const override {
    return state_;
  }
  const std::string& why_lost() const override {
    return why_lost_;
  }
  void listen(const std::string& address, int ranks) override;
  std::optional<int> port() const override {
    return port_;
  }
  void start(const Share& share, PlaceEvents& events) override;
  void signal(int number) override;
  void stop(int number) override;
  void kill() override;

  void add_to(std::vector<pollfd>& polled) const override;
  void serve(const std::vector<pollfd>& polled) override;
  void advance() override;
  std::optional<Clock::time_point> wake() const override;

 private:
  void send(const Message& order);
  void read_messages();
  void read_complaints();
  void handle(const Message& event);
  bool has(int rank) const;
  void lose(const std::string& why);
  bool wait_for_end(std::chrono::milliseconds patience);

  AgentSetup setup_;
  Say say_;
  Pipe from_;
  Pipe complaints_;
  Pipe to_;
  pid_t pid_ = -1;
  int wait_status_ = 0;
  std::optional<Outlet> orders_;
  MessageReader reader_;
  LineSplitter complaint_lines_;
  LastLines last_complaints_;

  State state_ = State::connecting;
  std::string why_lost_;
  std::exception_ptr refusal_;
  std::optional<int> port_;
  PlaceEvents* events_ = nullptr;
  Share share_;
  bool held_ = false;
  bool kill_sent_ = false;
  Clock::time_point started_at_;
  Clock::time_point heard_at_;
  Clock::time_point looked_at_;
  Clock::time_point beat_at_;
};

} // namespace trireme::launch
