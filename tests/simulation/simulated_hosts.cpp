#include "simulated_agent.h"

#include <signal.h>

#include <algorithm>
#include <utility>

namespace trireme::simulation {
namespace {

using launch::HostTime;
using launch::Message;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kExit1 = 1 << 8;

} // namespace

class SimulatedHosts::Connection : public launch::AgentConnection {
 public:
  Connection(SimulatedHosts& hosts, std::shared_ptr<Agent> agent) : hosts_(hosts), agent_(std::move(agent)) {}
  ~Connection() override { cut(); }
  void send(const std::string& bytes) override {
    if (agent_->launcher_open) {
      hosts_.to_agent(agent_, bytes);
    }
  }
  void dismiss() override { hosts_.to_agent(agent_, ""); }
  void add_to(std::vector<pollfd>&) const override {}
  void serve(const std::vector<pollfd>&, const Listener& listener) override {
    while (agent_->launcher_open && !agent_->to_launcher.empty()) {
      const std::string bytes = std::move(agent_->to_launcher.front());
      agent_->to_launcher.pop_front();
      listener.arrived(bytes);
    }
    if (agent_->launcher_open && agent_->ended_for_launcher && agent_->to_launcher.empty()) {
      listener.ended();
    }
  }
  void cut() override {
    if (std::exchange(agent_->launcher_open, false)) {
      hosts_.to_agent(agent_, "");
    }
  }
  std::string last_words(const Listener&) override {
    cut();
    return agent_->complaint.empty() ? "rsh ended" : agent_->complaint;
  }

 private:
  SimulatedHosts& hosts_;
  std::shared_ptr<Agent> agent_;
};

SimulatedHosts::SimulatedHosts(Simulator& simulator, const Options& options, std::filesystem::path run_folder)
    : simulator_(simulator), options_(options), run_folder_(std::move(run_folder)) {
  hosts_.resize(static_cast<size_t>(options.hosts));
  for (size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i].name = std::string(1, static_cast<char>('a' + i));
    hosts_[i].clock_rate = 0.996 + 0.008 * static_cast<double>(simulator.random().below(1001)) / 1000;
    hosts_[i].clock_offset = seconds(simulator.random().below(100000));
  }
}

SimulatedHosts::~SimulatedHosts() = default;

int SimulatedHosts::host_number(const std::string& name) const {
  return name.at(0) - 'a';
}

HostTime SimulatedHosts::host_time(const Host& host) const {
  const double now = std::chrono::duration<double>(simulator_.now().time_since_epoch()).count();
  return host.clock_offset + std::chrono::duration_cast<HostTime>(std::chrono::duration<double>(now * host.clock_rate));
}

std::unique_ptr<launch::AgentConnection> SimulatedHosts::connect(const launch::AgentSetup& setup, int launcher) {
  Host& host = hosts_.at(static_cast<size_t>(host_number(setup.host)));
  auto agent = std::make_shared<Agent>();
  agent->host = &host;
  agent->launcher = launcher;
  // A login takes its time, and longer than the launcher's patience if nobody answers.
  const Clock::duration login = simulator_.random().chance(0.05)
                                    ? simulator_.random().between(seconds(1), seconds(30))
                                    : simulator_.random().between(milliseconds(5), milliseconds(500));
  agent->lives = false;
  simulator_.after(login, [this, agent] {
    if (agent->host->refuses || !agent->launcher_open) {
      agent->complaint = "ssh: connect to host " + agent->host->name + " port 22: No route to host";
      close(agent);
    } else if (agent->host->up) {
      begin(agent);
    }
  });
  host.agents.push_back(agent);
  return std::make_unique<Connection>(*this, agent);
}

void SimulatedHosts::begin(const std::shared_ptr<Agent>& agent) {
  agent->lives = true;
  agent->lease.granted(host_time(*agent->host));
  tick(agent);
  deliver(agent);
}

// "": the launcher's end is closed.
void SimulatedHosts::to_agent(const std::shared_ptr<Agent>& agent, std::string bytes) {
  const Clock::time_point when = std::max(agent->last_to_agent, simulator_.now() + simulator_.delay());
  agent->last_to_agent = when;
  simulator_.after(when - simulator_.now(), [this, agent, bytes = std::move(bytes)] {
    agent->held_to_agent.push_back(bytes);
    deliver(agent);
  });
}

void SimulatedHosts::deliver(const std::shared_ptr<Agent>& agent) {
  while (agent->lives && !agent->stopped && !agent->host->cut_to_agent && !agent->held_to_agent.empty()) {
    const std::string bytes = std::move(agent->held_to_agent.front());
    agent->held_to_agent.pop_front();
    if (bytes.empty()) {
      agent->input_ended = true;
      end_agent(agent);
      return;
    }
    agent->reader.add(bytes);
    while (const auto line = agent->reader.next()) {
      if (line->message && !agent->over) {
        obey(agent, *line->message);
      }
    }
  }
}

void SimulatedHosts::tell(const std::shared_ptr<Agent>& agent, const Message& event) {
  agent->held_to_launcher.push_back(launch::pack(event));
  flush_to_launcher(agent);
}

void SimulatedHosts::flush_to_launcher(const std::shared_ptr<Agent>& agent) {
  if (agent->host->cut_to_launcher || agent->lost_power || agent->stopped) {
    return;
  }
  while (!agent->held_to_launcher.empty()) {
    const Clock::time_point when = std::max(agent->last_to_launcher, simulator_.now() + simulator_.delay());
    agent->last_to_launcher = when;
    simulator_.after(when - simulator_.now(), [this, agent, bytes = std::move(agent->held_to_launcher.front())] {
      agent->to_launcher.push_back(bytes);
      simulator_.wake(agent->launcher);
    });
    agent->held_to_launcher.pop_front();
  }
  if (std::exchange(agent->end_is_held, false)) {
    agent->last_to_launcher = std::max(agent->last_to_launcher, simulator_.now() + simulator_.delay());
    simulator_.after(agent->last_to_launcher - simulator_.now(), [this, agent] {
      agent->ended_for_launcher = true;
      simulator_.wake(agent->launcher);
    });
  }
}

// The agent's end, and the guardian's: nothing more comes.
void SimulatedHosts::close(const std::shared_ptr<Agent>& agent) {
  agent->end_is_held = true;
  flush_to_launcher(agent);
}

void SimulatedHosts::obey(const std::shared_ptr<Agent>& agent, const Message& order) {
  const std::string what = order.at("do");
  const Host& host = *agent->host;
  agent->guardian_stopped = false; // what is told to it continues it
  if (what == "job") {
    const HostTime asked = host_time(host);
    const std::chrono::duration<double> length(order.at("lease_s").get<double>());
    agent->lease = launch::Lease(std::chrono::duration_cast<HostTime>(length));
    agent->lease.granted(asked);
    tell(agent, {{"is", "ready"}, {"protocol", launch::kProtocol}, {"pid", 1}, {"asked", asked.count()}});
  } else if (what == "beat") {
    agent->lease.granted(HostTime(order.at("asked").get<int64_t>()));
    agent->guardian_until = agent->lease.until() + launch::kGuardianLater;
  } else if (what == "listen") {
    if (!simulator_.random().chance(0.01)) { // a name server that does not answer
      tell(agent, {{"is", "listening"}, {"port", 29000}, {"program_port", 29001}});
    }
  } else if (what == "start") {
    if (options_.leases && !agent->lease.held(host_time(host))) {
      end_agent(agent);
      return;
    }
    start_ranks(agent, launch::unpack_share(order.at("share")));
  } else if (what == "signal" || what == "stop") {
    const int number = order.at("signal");
    const auto until_they_end = simulator_.random().chance(0.1)
                                    ? simulator_.random().between(seconds(1), seconds(90))
                                    : simulator_.random().between(milliseconds(1), milliseconds(900));
    simulator_.after(until_they_end, [this, agent, number, start = agent->starts] {
      for (size_t i = 0; i < agent->ranks.size() && agent->starts == start; ++i) {
        end_rank(agent, i, number == SIGINT ? SIGINT : 0);
      }
    });
  } else if (what == "kill") {
    kill_ranks(agent);
  }
}

void SimulatedHosts::start_ranks(const std::shared_ptr<Agent>& agent, const launch::Share& share) {
  ++agent->starts;
  agent->running = agent->guardian_lives = true;
  agent->guardian_stopped = agent->guardian_was_stopped = agent->guardian_killed = false;
  agent->guardian_until = agent->lease.until() + launch::kGuardianLater;
  agent->ranks.clear();
  agent->first_rank = share.first_rank;
  agent->ranks_of_start = share.ranks;
  last_start_ = std::max(last_start_, share.restarts);
  for (int i = 0; i < share.local_ranks; ++i) {
    Rank rank;
    rank.number = share.first_rank + i;
    rank.start = share.restarts;
    for (const auto& [name, value] : share.variables) {
      rank.server = rank.server || name == "TRIREME_SERVER";
      rank.task = name == "TRIREME_SERVER" || name == "TRIREME_WORKER" ? name + "=" + value : rank.task;
    }
    agent->ranks.push_back(std::move(rank));
    simulator_.note(concat("host ", agent->host->name, " starts rank ", share.first_rank + i, " of start ",
                           share.restarts, ' ', agent->ranks.back().task));
  }
  for (size_t i = 0; i < agent->ranks.size(); ++i) {
    simulator_.after(simulator_.random().between(milliseconds(100), seconds(1)),
                     [this, agent, i, start = agent->starts] {
                       if (agent->starts == start) {
                         work(agent, i);
                       }
                     });
  }
  guard(agent);
  check();
}

// The beat and the lease of an agent; no more once it has ended.
void SimulatedHosts::tick(const std::shared_ptr<Agent>& agent) {
  if (!agent->lives) {
    return;
  }
  if (!agent->stopped && !agent->over) {
    tell(agent, {{"is", "beat"}, {"asked", host_time(*agent->host).count()}});
    if (options_.leases && !agent->lease.held(host_time(*agent->host))) {
      simulator_.note("the lease of host " + agent->host->name + " is over");
      end_agent(agent);
    }
  }
  simulator_.after(milliseconds(500), [this, agent] { tick(agent); });
}

// The guardian's lease; no more once its ranks have ended.
void SimulatedHosts::guard(const std::shared_ptr<Agent>& agent) {
  if (!agent->guardian_lives) {
    return;
  }
  if (options_.leases && !agent->guardian_stopped && host_time(*agent->host) >= agent->guardian_until) {
    kill_ranks(agent);
  }
  simulator_.after(milliseconds(200), [this, agent, start = agent->starts] {
    if (agent->starts == start) {
      guard(agent);
    }
  });
}

bool SimulatedHosts::others_live(const Rank& rank, int ranks) const {
  int found = 0;
  for (const Host& host : hosts_) {
    for (const auto& agent : host.agents) {
      for (const Rank& other : agent->ranks) {
        found += other.lives && other.start == rank.start && host.up ? 1 : 0;
      }
    }
  }
  return found >= ranks;
}

void SimulatedHosts::work(const std::shared_ptr<Agent>& agent, size_t i) {
  Rank& rank = agent->ranks[i];
  if (!rank.lives) {
    return;
  }
  if (simulator_.random().chance(options_.crash)) {
    end_rank(agent, i, simulator_.random().chance(0.5) ? SIGKILL : kExit1);
    return;
  }
  const bool is_task = !rank.task.empty();
  if (!is_task && rank.worked > 1 && !others_live(rank, agent->ranks_of_start) && !all_done() &&
      simulator_.random().chance(0.15)) {
    end_rank(agent, i, kExit1); // the others are gone, which may take up to a time-out to be seen
    return;
  }
  ++rank.worked;
  if (!is_task && rank.number == 0) {
    try {
      if (!rank.token) {
        rank.token.emplace(run_folder_);
        rank.token->claim();
      }
      rank.token->check();
      if (rank.token->attempt() < last_writer_) {
        simulator_.violate(concat("attempt ", rank.token->attempt(), " wrote the run after attempt ", last_writer_));
      }
      last_writer_ = rank.token->attempt();
      work_done_ += all_done() ? 0 : 1;
    } catch (const ReplacedError&) {
      end_rank(agent, i, kExit1);
      return;
    }
  }
  if (is_task ? !rank.server && rank.worked >= options_.work : all_done()) {
    end_rank(agent, i, 0);
    return;
  }
  simulator_.after(simulator_.random().between(milliseconds(900), milliseconds(1100)),
                   [this, agent, i, start = agent->starts] {
                     if (agent->starts == start) {
                       work(agent, i);
                     }
                   });
}

void SimulatedHosts::end_rank(const std::shared_ptr<Agent>& agent, size_t i, int wait_status) {
  Rank& rank = agent->ranks[i];
  if (!rank.lives) {
    return;
  }
  rank.lives = false;
  launch::RankEnd end;
  end.wait_status = wait_status;
  if (agent->lives) { // a stopped one says so when it goes on
    tell(agent, launch::pack_end(rank.number, end));
  }
  const bool any = std::any_of(agent->ranks.begin(), agent->ranks.end(), [](const Rank& one) { return one.lives; });
  if (!any && agent->running) {
    agent->running = agent->guardian_lives = false;
    if (agent->lives) {
      tell(agent, {{"is", "over"}});
      if (agent->over) {
        tell(agent, {{"is", "gone"}});
        agent->lives = false;
        close(agent);
      }
    } else if (!agent->lost_power && !agent->guardian_killed) { // the guardian of a killed agent
      tell(agent, {{"is", "gone"}});
      close(agent);
    }
  }
}

void SimulatedHosts::kill_ranks(const std::shared_ptr<Agent>& agent) {
  if (!agent->guardian_lives || agent->guardian_stopped) {
    return;
  }
  simulator_.after(simulator_.random().between(milliseconds(1), milliseconds(700)),
                   [this, agent, start = agent->starts] {
                     for (size_t i = 0; i < agent->ranks.size() && agent->starts == start; ++i) {
                       end_rank(agent, i, SIGKILL);
                     }
                   });
}

// It ends with its ranks.
void SimulatedHosts::end_agent(const std::shared_ptr<Agent>& agent) {
  if (std::exchange(agent->over, true)) {
    return;
  }
  agent->guardian_stopped = false; // the order to kill continues it
  if (agent->running) {
    kill_ranks(agent);
  } else {
    tell(agent, {{"is", "gone"}});
    agent->lives = false;
    close(agent);
  }
}

} // namespace trireme::simulation
