#pragma once

#include <tests/simulation/simulator.h>
#include <trireme/base/run_token.h>
#include <trireme/launch/agent_connection.h>
#include <trireme/launch/lease.h>
#include <trireme/launch/messages.h>
#include <trireme/launch/remote_place.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::simulation {

/// Hosts with agents, guardians and ranks, for the launcher's real decisions (RemotePlace, HostPool, Attempt, tasks):
/// messages, leases and the token
/// of the run folder are the real ones, what would be a process is an entry here.
///
/// A rank of a job of ranks works until all of its start have done the work, ends when one of the others has, and rank
/// 0 writes the run once a second
/// if its token lets it. A worker works by itself, a server until it is asked to end.
class SimulatedHosts {
 public:
  struct Options {
    int hosts = 3;
    /// Seconds of work that is saved each second.
    int work = 15;
    /// Chance that a rank crashes in a second, and that it refuses its input.
    double crash = 0;
    /// Makes agents as they were before leases, to see what a check finds.
    bool leases = true;
  };
  SimulatedHosts(Simulator& simulator, const Options& options, std::filesystem::path run_folder);
  ~SimulatedHosts();

  /// The launcher's end of the connection to a new agent. `launcher`: the process to wake.
  std::unique_ptr<launch::AgentConnection> connect(const launch::AgentSetup& setup, int launcher);

  // -- Faults, by number of the host. All may be called at any time.

  void stop_agent(int host, bool guardian_too);
  void go_on(int host);
  void kill_agent(int host);
  void kill_guardian(int host);
  void crash_rank(int host);
  void lose_power(int host);
  void power_on(int host);
  void refuse(int host, bool refuses);
  /// Messages in this direction wait.
  void cut(int host, bool to_agent, bool is_cut);

  /// Which starts have ranks that run now.
  int starts() const;
  bool all_done() const { return work_done_ >= options_.work; }
  /// The number of the last start of all ranks, from 0.
  int last_start() const { return last_start_; }
  int host_number(const std::string& name) const;

 private:
  struct Rank {
    int number = 0;
    int start = 0;
    bool lives = true;
    bool asked = false;
    bool server = false;
    std::string task; // "TRIREME_WORKER=0/2"
    std::optional<RunToken> token;
    int worked = 0;
  };
  struct Agent;
  class Connection;
  struct Host {
    std::string name;
    bool up = true;
    bool refuses = false;
    bool cut_to_agent = false;
    bool cut_to_launcher = false;
    double clock_rate = 1;
    std::chrono::nanoseconds clock_offset{0};
    std::vector<std::shared_ptr<Agent>> agents; // of all times: a stopped one lives on beside the next
  };

  launch::HostTime host_time(const Host& host) const;
  void begin(const std::shared_ptr<Agent>& agent);
  void tell(const std::shared_ptr<Agent>& agent, const launch::Message& event);
  void to_agent(const std::shared_ptr<Agent>& agent, std::string bytes);
  void deliver(const std::shared_ptr<Agent>& agent);
  void flush_to_launcher(const std::shared_ptr<Agent>& agent);
  void obey(const std::shared_ptr<Agent>& agent, const launch::Message& order);
  void start_ranks(const std::shared_ptr<Agent>& agent, const launch::Share& share);
  void tick(const std::shared_ptr<Agent>& agent);
  void guard(const std::shared_ptr<Agent>& agent);
  void work(const std::shared_ptr<Agent>& agent, size_t rank);
  void end_rank(const std::shared_ptr<Agent>& agent, size_t rank, int wait_status);
  void kill_ranks(const std::shared_ptr<Agent>& agent);
  void end_agent(const std::shared_ptr<Agent>& agent);
  void close(const std::shared_ptr<Agent>& agent);
  void check() const;
  bool others_live(const Rank& rank, int ranks) const;

  Simulator& simulator_;
  Options options_;
  std::filesystem::path run_folder_;
  std::vector<Host> hosts_;
  int work_done_ = 0;
  int last_start_ = 0;
  int64_t last_writer_ = 0;
};

} // namespace trireme::simulation
