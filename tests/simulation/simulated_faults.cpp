// What happens to hosts, and what must not.
#include "simulated_agent.h"

#include <signal.h>

#include <set>
#include <utility>

namespace trireme::simulation {

void SimulatedHosts::stop_agent(int number, bool guardian_too) {
  simulator_.note("host " + hosts_[static_cast<size_t>(number)].name + (guardian_too ? " stops" : "'s agents stop"));
  for (const auto& agent : hosts_[static_cast<size_t>(number)].agents) {
    agent->stopped = agent->lives;
    agent->guardian_stopped = agent->guardian_stopped || (guardian_too && agent->guardian_lives);
    agent->guardian_was_stopped = agent->guardian_was_stopped || agent->guardian_stopped;
  }
}

void SimulatedHosts::go_on(int number) {
  simulator_.note("host " + hosts_[static_cast<size_t>(number)].name + " goes on");
  for (const auto& agent : hosts_[static_cast<size_t>(number)].agents) {
    agent->stopped = agent->guardian_stopped = false;
    flush_to_launcher(agent);
    deliver(agent);
  }
}

void SimulatedHosts::kill_agent(int number) {
  simulator_.note("host " + hosts_[static_cast<size_t>(number)].name + "'s agents are killed");
  for (const auto& agent : hosts_[static_cast<size_t>(number)].agents) {
    if (std::exchange(agent->lives, false)) {
      agent->stopped = false;
      if (agent->running) {
        kill_ranks(agent); // a stopped guardian does it when it goes on, by its lease
      } else {
        close(agent);
      }
    }
  }
}

void SimulatedHosts::kill_guardian(int number) {
  simulator_.note("host " + hosts_[static_cast<size_t>(number)].name + "'s guardians are killed");
  for (const auto& agent : hosts_[static_cast<size_t>(number)].agents) {
    agent->guardian_killed = agent->guardian_lives;
    for (size_t i = 0; i < agent->ranks.size() && agent->guardian_lives; ++i) {
      end_rank(agent, i, SIGKILL); // the kernel
    }
  }
}

void SimulatedHosts::crash_rank(int number) {
  for (const auto& agent : hosts_[static_cast<size_t>(number)].agents) {
    if (!agent->ranks.empty()) {
      end_rank(agent, static_cast<size_t>(simulator_.random().below(std::ssize(agent->ranks))), SIGSEGV);
    }
  }
}

void SimulatedHosts::lose_power(int number) {
  Host& host = hosts_[static_cast<size_t>(number)];
  simulator_.note("host " + host.name + " loses power");
  host.up = false;
  for (const auto& agent : host.agents) {
    agent->lost_power = true; // nothing is said
    agent->lives = agent->running = agent->guardian_lives = false;
    for (Rank& rank : agent->ranks) {
      rank.lives = false;
    }
  }
}

void SimulatedHosts::power_on(int number) {
  hosts_[static_cast<size_t>(number)].up = true;
}

void SimulatedHosts::refuse(int number, bool refuses) {
  hosts_[static_cast<size_t>(number)].refuses = refuses;
}

void SimulatedHosts::cut(int number, bool to_agent, bool is_cut) {
  Host& host = hosts_[static_cast<size_t>(number)];
  simulator_.note("the line " + std::string(to_agent ? "to host " : "from host ") + host.name +
                  (is_cut ? " is cut" : " is whole again"));
  (to_agent ? host.cut_to_agent : host.cut_to_launcher) = is_cut;
  for (const auto& agent : host.agents) {
    if (!is_cut && to_agent) {
      deliver(agent);
    } else if (!is_cut) {
      flush_to_launcher(agent);
    }
  }
}

int SimulatedHosts::starts() const {
  std::set<std::pair<std::string, int>> starts;
  for (const Host& host : hosts_) {
    for (const auto& agent : host.agents) {
      for (const Rank& rank : agent->ranks) {
        if (rank.lives && !agent->guardian_was_stopped) {
          starts.emplace(rank.task, rank.start);
        }
      }
    }
  }
  std::set<std::string> tasks;
  for (const auto& [task, start] : starts) {
    if (!tasks.insert(task).second) {
      return 2;
    }
  }
  return starts.empty() ? 0 : 1;
}

void SimulatedHosts::check() const {
  if (starts() > 1) {
    simulator_.violate("ranks of two starts run at the same time");
  }
}

} // namespace trireme::simulation
