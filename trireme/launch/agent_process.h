#pragma once

#include <trireme/launch/agent_connection.h>
#include <trireme/launch/descriptor.h>
#include <trireme/launch/lines.h>
#include <trireme/launch/screen.h>
#include <trireme/launch/signals.h>

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// An agent whose standard input and output are pipes of a child process: ssh, or the agent itself on this machine.
class AgentProcess : public AgentConnection {
 public:
  /// Starts `command`. Errors: InputError when it cannot be run, Error when the system refuses a process or
  /// descriptors.
  AgentProcess(const std::vector<std::string>& command, const SignalWatch& signals);
  ~AgentProcess() override;

  void send(const std::string& bytes) override { orders_->write(bytes); }
  void dismiss() override;
  void add_to(std::vector<pollfd>& polled) const override;
  void serve(const std::vector<pollfd>& polled, const Listener& listener) override;
  void cut() override;
  std::string last_words(const Listener& listener) override;

 private:
  void read_events(const Listener& listener);
  void read_complaints(const Listener& listener);
  bool wait_for_end(std::chrono::milliseconds patience);

  std::string program_;
  Pipe from_;
  Pipe complaints_;
  Pipe to_;
  pid_t pid_ = -1;
  int wait_status_ = 0;
  std::optional<Outlet> orders_;
  LineSplitter complaint_lines_;
  LastLines last_complaints_;
};

} // namespace trireme::launch
