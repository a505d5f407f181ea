#pragma once

#include <poll.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// The connection to a host's agent: bytes in both directions, and the errors of its login. No function blocks.
class AgentConnection {
 public:
  /// Receives what arrives.
  struct Listener {
    std::function<void(std::string_view bytes)> arrived;
    /// A line of standard error.
    std::function<void(std::string_view line)> complained;
    /// No more will arrive.
    std::function<void()> ended;
  };
  virtual ~AgentConnection() = default;

  virtual void send(const std::string& bytes) = 0;
  /// Asks the agent to end; the destructor waits for it.
  virtual void dismiss() = 0;
  virtual void add_to(std::vector<pollfd>& polled) const = 0;
  virtual void serve(const std::vector<pollfd>& polled, const Listener& listener) = 0;
  /// Ends the connection at once.
  virtual void cut() = 0;
  /// After the end: its reason, as in "ssh ended with exit code 255: no route to host"; also cuts the connection.
  virtual std::string last_words(const Listener& listener) = 0;
};

} // namespace trireme::launch
