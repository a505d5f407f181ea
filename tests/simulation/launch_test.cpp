// The launcher's decisions over hosts that are silent, lost, slow, refuse or come back: attempts, leases, the pool of
// hosts, tasks.
#include "schedules.h"
#include "simulated_hosts.h"

#include <trireme/base/descriptor.h>
#include <trireme/base/file.h>
#include <trireme/launch/attempts.h>
#include <trireme/launch/tasks.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

namespace trireme::simulation {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

/// A job of a launcher, which runs as the simulator's process.
class SimulatedJob {
 public:
  SimulatedJob(Simulator& simulator, const SimulatedHosts::Options& hosts, const fs::path& folder)
      : simulator_(simulator),
        folder_(folder),
        hosts_(simulator, hosts, folder / "run"),
        nothing_(::open("/dev/null", O_WRONLY)),
        screen_(nothing_.get(), nothing_.get()),
        account_(nullptr) {
    for (int i = 0; i < hosts.hosts; ++i) {
      options_.hosts.push_back({std::string(1, static_cast<char>('a' + i)),
                                1 + static_cast<int>(simulator.random().below(2)), "192.0.2." + std::to_string(i + 1)});
    }
    options_.ranks = 0;
    options_.command = {"program"};
    options_.rsh = {"rsh"};
    options_.agent = "/program";
    options_.preemptible = true;
    options_.grace_seconds = 10;
    options_.heartbeat_timeout = simulator.random().chance(0.5) ? 5 : 2;
  }

  launch::LaunchOptions& options() { return options_; }
  SimulatedHosts& hosts() { return hosts_; }
  const std::optional<launch::Outcome>& outcome() const { return outcome_; }

  void start() {
    launcher_ = simulator_.start("launcher", [this] { run(); });
  }
  int launcher() const { return launcher_; }
  void signal(int number) {
    signal_ = number;
    simulator_.wake(launcher_);
  }

 private:
  void run() {
    launch::Job job{options_, folder_, signals_, screen_, account_};
    job.wait = [this](Clock::time_point wake) {
      // What arrives wakes this process, so that one look is enough.
      bool first = true;
      simulator_.block_until(wake, [&] { return !std::exchange(first, false) || signal_; });
      return std::exchange(signal_, std::nullopt);
    };
    const auto connect = [this](launch::AgentSetup setup) {
      auto connection = hosts_.connect(setup, launcher_);
      return std::make_unique<launch::RemotePlace>(
          std::move(setup), std::move(connection),
          [this](const std::string& words) { simulator_.note("said: " + words); });
    };
    launch::LaunchOptions hosts = options_;
    if (options_.servers > 0) {
      hosts.hosts = launch::hosts_of_tasks(options_.hosts, options_.ranks, options_.servers);
      hosts.ranks = options_.ranks + options_.servers;
    }
    launch::HostPool pool(hosts, "run", "secret", signals_, screen_, connect);
    if (options_.servers > 0) {
      std::vector<std::string> addresses;
      for (const launch::Host& host : hosts.hosts) {
        addresses.push_back(host.address);
      }
      outcome_ = launch::run_tasks(job, pool.choose(), addresses);
      return;
    }
    const auto next_start = [&] {
      auto members = pool.choose();
      return launch::Start{std::move(members), pool.address(), pool.arrangement().command};
    };
    outcome_ = launch::run_attempts(job, next_start, &pool);
  }

  Simulator& simulator_;
  fs::path folder_;
  SimulatedHosts hosts_;
  launch::LaunchOptions options_;
  Descriptor nothing_;
  launch::Screen screen_;
  launch::SignalWatch signals_;
  launch::RestartAccount account_;
  int launcher_ = -1;
  std::optional<int> signal_;
  std::optional<launch::Outcome> outcome_;
};

/// Some faults of any kind in the first seconds of a job; all is whole again after a minute and a half.
void break_hosts(Simulator& simulator, SimulatedJob& job, int64_t most) {
  Random& random = simulator.random();
  const int64_t faults = random.below(most + 1);
  const auto hosts = std::ssize(job.options().hosts);
  for (int64_t fault = 0; fault < faults; ++fault) {
    const auto when = random.between(seconds(0), seconds(25));
    const auto how_long =
        random.chance(0.3) ? random.between(milliseconds(100), seconds(3)) : random.between(seconds(3), seconds(60));
    const int host = static_cast<int>(random.below(hosts));
    const int64_t kind = random.below(10);
    const bool flag = random.chance(0.5);
    simulator.after(when, [&simulator, &job, host, kind, flag, how_long] {
      SimulatedHosts& all = job.hosts();
      const auto later = [&simulator, how_long](std::function<void()> action) {
        simulator.after(how_long, std::move(action));
      };
      switch (kind) {
        case 0:
          all.stop_agent(host, flag);
          later([&all, host] { all.go_on(host); });
          break;
        case 1:
          all.kill_agent(host);
          break;
        case 2:
          all.kill_guardian(host);
          break;
        case 3:
          all.crash_rank(host);
          break;
        case 4:
          all.lose_power(host);
          later([&all, host] { all.power_on(host); });
          break;
        case 5:
          all.refuse(host, true);
          later([&all, host] { all.refuse(host, false); });
          break;
        case 6:
        case 7:
          all.cut(host, flag, true);
          later([&all, host, flag] { all.cut(host, flag, false); });
          break;
        case 8:
          all.cut(host, true, true);
          all.cut(host, false, true);
          later([&all, host] {
            all.cut(host, true, false);
            all.cut(host, false, false);
          });
          break;
        default:
          simulator.pause(job.launcher());
          later([&simulator, &job] { simulator.go_on(job.launcher()); });
      }
    });
  }
}

SimulatedHosts::Options random_hosts(Random& random) {
  SimulatedHosts::Options options;
  options.hosts = 1 + static_cast<int>(random.below(4));
  options.work = 5 + static_cast<int>(random.below(50));
  options.crash = random.chance(0.2) ? 0.02 : 0;
  return options;
}

class SimulatedLaunchTest : public testing::Test {
 protected:
  void start_and_check(Simulator& simulator, bool leases) const {
    const fs::path folder = scratch_.path;
    fs::remove_all(folder / "run");
    SimulatedHosts::Options hosts_of_job = random_hosts(simulator.random());
    hosts_of_job.leases = leases;
    SimulatedJob job(simulator, hosts_of_job, folder);
    launch::LaunchOptions& options = job.options();
    const int hosts = static_cast<int>(options.hosts.size());
    options.max_restarts = static_cast<int>(simulator.random().below(4));
    options.max_nodes = static_cast<int>(simulator.random().below(hosts + 1));
    options.min_nodes = simulator.random().chance(0.5) ? 0 : 1;
    break_hosts(simulator, job, 4);
    if (simulator.random().chance(0.15)) {
      simulator.after(simulator.random().between(seconds(0), seconds(30)), [&job] { job.signal(SIGTERM); });
    }
    job.start();
    if (!simulator.run(minutes(30))) {
      simulator.violate("the job does not end");
      return;
    }
    if (!job.outcome()) {
      simulator.violate("the launcher ends with an error: " + simulator.end_of(job.launcher()));
      return;
    }
    const launch::Outcome& outcome = *job.outcome();
    if (outcome.exit_code == 0 && outcome.received_signal == 0 && !job.hosts().all_done()) {
      simulator.violate("the job ends with 0 and has not done its work");
    }
    if (job.hosts().last_start() > options.max_restarts) {
      simulator.violate("the ranks were started more often than max_restarts says");
    }
  }

  // Not a static: a test's process ends without their destructors.
  const ScratchFolder scratch_ =
      ScratchFolder(make_scratch_folder("trireme_simulated", fs::exists("/dev/shm") ? "/dev/shm" : ""));
};

TEST_F(SimulatedLaunchTest, OneStartAtATimeAndEveryJobEnds) {
  run_schedules(1500, [this](Simulator& simulator) { start_and_check(simulator, true); });
}

// What a lost host's ranks did until they heard of it: the checks see it.
TEST_F(SimulatedLaunchTest, WithoutLeasesTwoTrainingsAreFound) {
  EXPECT_THAT(first_violation(1000, [this](Simulator& simulator) { start_and_check(simulator, false); }),
              testing::HasSubstr("start"));
}

TEST_F(SimulatedLaunchTest, TasksOfLostHostsHoldUpNobody) {
  run_schedules(1500, [this](Simulator& simulator) {
    const fs::path folder = scratch_.path;
    SimulatedHosts::Options hosts = random_hosts(simulator.random());
    hosts.work = 5 + static_cast<int>(simulator.random().below(10));
    SimulatedJob job(simulator, hosts, folder);
    launch::LaunchOptions& options = job.options();
    int slots = 0;
    for (const launch::Host& host : options.hosts) {
      slots += host.slots;
    }
    options.ranks = 1 + static_cast<int>(simulator.random().below(slots));
    options.servers = 1 + static_cast<int>(simulator.random().below(2));
    options.max_restarts = static_cast<int>(simulator.random().below(4));
    break_hosts(simulator, job, 3);
    job.start();
    if (!simulator.run(minutes(30))) {
      simulator.violate("the job does not end");
    } else if (!job.outcome()) {
      simulator.violate("the launcher ends with an error: " + simulator.end_of(job.launcher()));
    }
  });
}

} // namespace
} // namespace trireme::simulation
