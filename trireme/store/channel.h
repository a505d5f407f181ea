#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>

#include <chrono>
#include <memory>
#include <string>

namespace trireme::store {

/// The server has ended or did not answer in time; all later calls fail, too.
class LostError : public PeerError {
 public:
  explicit LostError(const std::string& happened)
      : PeerError("store", happened,
                  "The process that runs the store has ended or is stopped: check its output and its state."),
        happened(happened) {}
  std::string happened;
};

/// Carries a Client's requests to a server and the replies back: a socket, or a simulated network.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Sends a message and returns the reply without its length. Errors: LostError if the connection has ended, or there
  /// was no reply within `patience`.
  virtual std::string exchange(const std::string& request, std::chrono::milliseconds patience) = 0;
};

/// A channel over a connected socket whose ends have proved that they belong to the job.
std::unique_ptr<Channel> make_socket_channel(Descriptor socket);

} // namespace trireme::store
