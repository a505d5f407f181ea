#pragma once

#include "simulated_hosts.h"

#include <deque>
#include <string>
#include <vector>

namespace trireme::simulation {

/// An agent of a host with its guardian, its ranks and its connection. A host has several in the course of time: the
/// ranks of a stopped one may live on beside those of the next.
struct SimulatedHosts::Agent {
  Host* host = nullptr;
  int launcher = -1;
  // The connection: in order, each direction with its own time of the last message.
  std::deque<std::string> to_launcher; // arrived, not yet read
  std::deque<std::string> held_to_launcher;
  std::deque<std::string> held_to_agent; // by a cut line or a stopped agent
  Clock::time_point last_to_launcher{};
  Clock::time_point last_to_agent{};
  bool launcher_open = true; // the launcher's end
  bool input_ended = false;
  bool ended_for_launcher = false; // arrived there
  bool end_is_held = false;
  std::string complaint;

  bool lives = true;
  bool stopped = false;
  bool over = false; // it ends as soon as its ranks have
  bool lost_power = false;
  bool guardian_lives = false;
  bool guardian_stopped = false;
  bool guardian_was_stopped = false; // its ranks may be late: the token keeps them from writing
  bool guardian_killed = false;
  bool running = false;
  launch::MessageReader reader;
  launch::Lease lease{std::chrono::seconds(60)};
  launch::HostTime guardian_until{launch::HostTime::max()};
  int starts = 0;
  std::vector<Rank> ranks;
  int ranks_of_start = 0;
  int first_rank = 0;
};

} // namespace trireme::simulation
