#pragma once

#include <trireme/launch/attempt.h>
#include <trireme/launch/remote_place.h>
#include <trireme/launch/signals.h>

#include <functional>
#include <memory>
#include <optional>

namespace trireme::launch {

/// The hosts of a job: which are usable, their agents, and the placement of ranks.
class HostPool {
 public:
  using MakePlace = std::function<std::unique_ptr<Place>(AgentSetup)>;
  /// `run_id` and `secret` are the job's. `make_place`: starts the agent of a host; default: an AgentProcess. Nothing
  /// is started yet.
  HostPool(const LaunchOptions& options, std::string run_id, std::string secret, const SignalWatch& signals,
           Screen& screen, MakePlace make_place = nullptr);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// The hosts for the next start, with agents on them: the first max_nodes that are not lost, in the order of the
  /// hostfile. Empty when fewer than min_nodes are left; see shortage(). Errors: InputError from `arrange`, or when an
  /// agent cannot be started.
  std::vector<Member> choose();
  /// The ranks and the command to start on them.
  const Arrangement& arrangement() const { return arrangement_; }
  /// The address at which they connect: the first host's.
  const std::string& address() const { return address_; }
  /// Removes the hosts that were lost since the last start.
  void drop_lost();
  /// Allows lost hosts in the next start if too few others are left.
  void forgive();
  /// A lost host whose ranks may run until then. No other rank may start earlier.
  struct Leased {
    std::string host;
    Clock::time_point until;
  };
  std::optional<Leased> leased() const;
  /// Says why there are too few hosts.
  std::string shortage() const;

 private:
  struct Entry {
    Host host;
    std::unique_ptr<Place> agent;
    bool lost = false;
    std::string why_lost;
    std::optional<Clock::time_point> leased_until;
  };
  void connect(Entry& entry);
  std::vector<std::string> agent_command(const Host& host);
  std::vector<Entry*> usable();
  size_t least() const;

  const LaunchOptions& options_;
  std::string run_id_;
  std::string secret_;
  Screen& screen_;
  MakePlace make_place_;
  std::vector<Entry> entries_;
  /// The host that is this machine, once it is known.
  std::optional<std::string> here_;
  Arrangement arrangement_;
  std::string address_;
};

} // namespace trireme::launch
