// Parameter servers and their workers, started, killed, cut off and started again at any request: what each server's
// values tell of the gradients that became part of them.
#include <trireme/base/log.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/extensions/server/parameter_server.h>
#include <trireme/extensions/server/servers.h>
#include <trireme/extensions/server/snapshot.h>

#include <tests/extensions/simulation/simulated_rpc.h>
#include <tests/simulation/schedules.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <map>
#include <set>

namespace trireme::parallel::server {
namespace {

using simulation::Killed;
using simulation::Simulator;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kTags = 96;
constexpr float kFirstValues = 1000;
constexpr float kOfTheCheckpoint = 5000;
constexpr int64_t kStepOfTheCheckpoint = 20;
constexpr int64_t kStepsOfItsOptimizer = 40;

/// One parameter with a row of numbers for each server. Each gradient has a number of its own, which it lowers by 1 on
/// each server: the values tell which gradients they have seen, and how often. The last number of a row is nobody's: it
/// tells what the values began with.
at::Tensor gradient_of(int64_t servers, int64_t tag) {
  at::Tensor gradient = torch::zeros({servers, kTags});
  gradient.select(1, tag).fill_(1);
  return gradient;
}

/// What a server's row tells.
struct Seen {
  float base = 0;
  std::set<int64_t> tags;
};

class Job {
 public:
  Job(Simulator& simulator, std::filesystem::path folder)
      : simulator_(simulator), rpc_(simulator), folder_(std::move(folder)) {
    auto& random = simulator_.random();
    workers_ = static_cast<int>(1 + random.below(3));
    options_.servers = 1 + random.below(3);
    using Mode = ServerOptions::Mode;
    constexpr std::array kModes = {Mode::sync, Mode::async, Mode::stale, Mode::hybrid};
    options_.mode = kModes[static_cast<size_t>(random.below(4))];
    options_.staleness = options_.mode == ServerOptions::Mode::stale ? random.below(3) : 0;
    options_.timeout_s = 0.02;
    options_.snapshot_every = random.chance(0.75) ? 1 : 2 + random.below(3); // 1: what is acknowledged is on the disk
    resumes_ = random.chance(0.7);
    first_step_ = resumes_ ? kStepOfTheCheckpoint : 0;
    steps_ = first_step_ + 3 + random.below(4);
    faults_ = random.below(4);
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    simulator_.note(concat(ServerOptions::name(options_.mode), ", ", workers_, " workers, ", options_.servers,
                           " servers, ", resumes_ ? "from a checkpoint, " : "", "to step ", steps_, ", ", faults_,
                           " faults"));
  }
  ~Job() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  /// What a server or worker says.
  void hear(const std::string& line) {
    is_update_lost_ = is_update_lost_ || line.find("server 0: lost the update of clock") != std::string::npos;
  }

  void run() {
    for (int place = 0; place < options_.servers; ++place) {
      start_server(place);
    }
    for (int number = 0; number < workers_; ++number) {
      start_worker(number, false);
    }
    simulator_.start("launcher", [this] { launch(); });
    for (int64_t fault = 0; fault < faults_; ++fault) {
      plan_a_fault();
    }
    const bool ended = simulator_.run(seconds(600));
    if (simulator_.violation().empty()) {
      ended ? check_the_end() : simulator_.violate("the job does not end");
    }
  }

 private:
  struct Task {
    int process = -1;
    bool is_server = false;
    int number = 0;
    bool done = false;
  };

  void start_server(int place) {
    task("server", place) = {simulator_.start(
                                 concat("server ", place),
                                 [this, place] {
                                   const auto server = rpc::serve(concat("sim://", place), {});
                                   ParameterServerOptions options;
                                   options.server = options_;
                                   options.place = place;
                                   options.folder = folder_;
                                   options.read_optimizer = [](const std::string&) {
                                     return optim::OptimizerOptions{.rule = optim::SgdOptions{.lr = 1}};
                                   };
                                   options.until_stopped = true;
                                   options.stop = &stop_;
                                   serve(*server, options);
                                 },
                                 later()),
                             true, place, false};
  }
  void start_worker(int number, bool restarted) {
    const std::string name = concat(restarted ? "worker, again, " : "worker ", number);
    task("worker", number) = {simulator_.start(
                                  name,
                                  [this, number, restarted] {
                                    try {
                                      work(number, restarted);
                                      task("worker", number).done = true;
                                    } catch (const InputError& error) {
                                      simulator_.violate(concat("worker ", number, " is refused: ", error.what()));
                                    }
                                  },
                                  later()),
                              false, number, false};
  }
  Task& task(const std::string& kind, int number) { return tasks_[concat(kind, ' ', number)]; }
  Clock::duration later() {
    auto& random = simulator_.random();
    return random.between(milliseconds(0), milliseconds(random.chance(0.3) ? 400 : 5));
  }

  // Starts again what has died, and ends the servers when all workers have done their steps.
  void launch() {
    while (true) {
      sleep_for(milliseconds(20));
      const auto is_done = [](const auto& one) { return one.second.is_server || one.second.done; };
      const bool done = std::all_of(tasks_.begin(), tasks_.end(), is_done);
      if (done) {
        stop_ = true;
        return;
      }
      for (auto& [name, one] : tasks_) { // nobody else changes the map
        if (!one.done && !simulator_.lives(one.process)) {
          if (++restarts_ > 40) {
            simulator_.violate(concat(name, " cannot go on: ", simulator_.end_of(one.process)));
            return;
          }
          sleep_for(simulator_.random().between(milliseconds(1), milliseconds(300)));
          one.is_server ? start_server(one.number) : start_worker(one.number, true);
        }
      }
    }
  }

  void plan_a_fault() {
    auto& random = simulator_.random();
    const bool early = random.chance(0.5); // while workers load
    simulator_.after(random.between(milliseconds(0), early ? milliseconds(30) : milliseconds(400)), [this] {
      auto& random = simulator_.random();
      auto victim = tasks_.begin();
      std::advance(victim, random.below(std::ssize(tasks_)));
      auto other = tasks_.begin();
      std::advance(other, random.below(std::ssize(tasks_)));
      const Task& one = victim->second;
      if (!simulator_.lives(one.process)) {
        return;
      }
      if (random.chance(0.2) && !one.is_server && other->second.is_server) {
        simulator_.note(concat("the connection between ", victim->first, " and ", other->first, " breaks"));
        ++breaks_;
        rpc_.break_connections(one.process, other->second.process);
      } else {
        server_faults_ += one.is_server ? 1 : 0;
        simulator_.kill_at_call(one.process, random.below(12), random.chance(0.5));
      }
    });
  }

  // As ServerSync and `trireme train` do it.
  void work(int number, bool restarted) {
    auto& random = simulator_.random();
    at::Tensor values = torch::full({options_.servers, kTags}, kFirstValues);
    const auto value = [&](int64_t) { return values; };
    WorkerOptions options;
    for (int place = 0; place < options_.servers; ++place) {
      options.addresses.push_back(concat("sim://", place));
    }
    options.worker = number;
    options.workers = workers_;
    options.restarted = restarted;
    ParameterInfo parameter;
    parameter.name = "w";
    parameter.shape = {options_.servers, kTags};
    Servers servers(options, {parameter}, {{"type", "SGD"}});
    if (number == 0 && !servers.initialized()) {
      servers.initialize(value);
    }
    servers.pull(value);
    look(values, number);
    int64_t step = 0;
    if (const int64_t there = servers.loads() ? servers.step() : 0; (restarted || !resumes_) && there > 0) {
      step = there;
      if (restarted) {
        check_position(number, step);
      }
      simulator_.note(concat("worker ", number, " goes on at step ", step));
    } else if (resumes_) {
      sleep_for(random.between(milliseconds(0), milliseconds(random.chance(0.2) ? 100 : 3)));
      values.fill_(kOfTheCheckpoint);
      servers.load({"a checkpoint", kStepOfTheCheckpoint, kStepsOfItsOptimizer}, value,
                   [](const std::string&, int64_t, int64_t, at::Tensor) {});
      step = std::max(kStepOfTheCheckpoint, servers.step());
      simulator_.note(concat("worker ", number, " has loaded, and goes on at step ", step));
      look(values, number);
    }
    progress_[number] = std::max(progress_[number], step);
    int64_t taken = step > 0 ? servers.clock() : 0;
    bool has_pushed = false;
    while (step < steps_) {
      sleep_for(random.between(milliseconds(0), milliseconds(random.chance(0.1) ? 60 : 4)));
      if (tags_ + 1 >= kTags) {
        throw Error("test", "no more tags");
      }
      const int64_t tag = tags_++;
      if (restarted && !has_pushed) {
        first_again_.insert(tag);
      }
      has_pushed = true;
      const at::Tensor gradient = gradient_of(options_.servers, tag);
      const auto of = [&](int64_t) { return gradient; };
      const int64_t faults = server_faults_;
      const Servers::Step how{.lr = 1, .betas = {}, .factor = 1};
      if (options_.together()) {
        servers.push(of, 0, false);
        servers.commit(how, value);
        const int64_t clock = servers.clock();
        step = std::max(step + 1, step + clock - std::exchange(taken, clock));
      } else {
        servers.push_pull(of, 0, how, value);
        ++step;
      }
      done_.insert(tag);
      simulator_.note(concat("worker ", number, " has made step ", step, " with gradient ", tag));
      progress_[number] = std::max(progress_[number], step);
      const std::vector<Seen> seen = look(values, number);
      if (!options_.together() && faults == 0 && server_faults_ == 0 && breaks_ == 0) {
        for (const Seen& one : seen) {
          if (!one.tags.contains(tag)) {
            simulator_.violate(concat("gradient ", tag, " of worker ", number, " was taken, and is not there"));
          }
        }
      }
    }
    servers.leave();
  }

  // A server that has ended has updates after its last snapshot no more.
  bool may_have_lost() const { return options_.snapshot_every > 1 && server_faults_ > 0; }

  // Where it goes on is between the slowest and the fastest.
  void check_position(int number, int64_t step) {
    int64_t least = steps_, most = first_step_;
    for (const auto& [worker, made] : progress_) {
      least = std::min(least, made);
      most = std::max(most, made);
    }
    const int64_t unanswered = server_faults_ + breaks_; // steps that a worker has counted, and a server may have lost
    if (may_have_lost()) {
      return;
    }
    if (step < std::min(least, progress_[number]) - unanswered || step > most + 1) {
      simulator_.violate(
          concat("worker ", number, " goes on at step ", step, ", and the workers are between ", least, " and ", most));
    }
  }

  // The same holds for all values at all times.
  std::vector<Seen> look(const at::Tensor& values, int number) {
    std::vector<Seen> all;
    for (int64_t s = 0; s < options_.servers; ++s) {
      all.push_back(read(values[s], concat("what worker ", number, " got of server ", s)));
      acknowledged_[s].insert(all.back().tags.begin(), all.back().tags.end());
    }
    return all;
  }
  Seen read(const at::Tensor& row, const std::string& where) {
    const auto* const number = row.const_data_ptr<float>();
    Seen seen{number[kTags - 1], {}};
    if (seen.base != kFirstValues && seen.base != kOfTheCheckpoint) {
      simulator_.violate(concat(where, " began with nothing that there is: ", seen.base));
    }
    for (int64_t tag = 0; tag < kTags - 1; ++tag) {
      if (number[tag] == seen.base - 1) {
        seen.tags.insert(tag);
        if (resumes_ && seen.base != kOfTheCheckpoint) {
          simulator_.violate(
              concat(where, ": gradient ", tag, " of a worker with the checkpoint is in values without it"));
        }
      } else if (number[tag] != seen.base) {
        simulator_.violate(concat(where, ": gradient ", tag, " counts ", seen.base - number[tag], " times"));
      }
    }
    return seen;
  }

  void check_the_end() {
    std::vector<Seen> last;
    for (int place = 0; place < options_.servers; ++place) {
      const auto file = snapshot_file(folder_, place);
      const Snapshot snapshot = read_snapshot(file, place, options_.servers);
      const at::Tensor row = checkpoint::Safetensors::open(file).tensor("parameter/w").flatten();
      const Seen seen = last.emplace_back(read(row, concat("the snapshot of server ", place)));
      if (resumes_ && (seen.base != kOfTheCheckpoint || snapshot.load.number != 1)) {
        simulator_.violate(concat("server ", place, " has not got the checkpoint"));
      }
      for (const int64_t tag : acknowledged_[place]) {
        if (!seen.tags.contains(tag) && !may_have_lost()) {
          simulator_.violate(concat("gradient ", tag, " was in the values of server ", place, ", and is lost"));
        }
      }
      if (!options_.together() && faults_ == 0 && std::ssize(seen.tags) != workers_ * (steps_ - first_step_)) {
        simulator_.violate(
            concat(seen.tags.size(), " gradients of ", workers_, " workers in ", steps_ - first_step_, " steps"));
      }
      const int64_t made = snapshot.clock - snapshot.load.clock;
      if (snapshot.steps != (resumes_ ? kStepsOfItsOptimizer : 0) + made) {
        simulator_.violate(
            concat("server ", place, " has made ", made, " updates, and its optimizer is at step ", snapshot.steps));
      }
      const bool all = (place == 0 || restarts_ == 0) &&
                       !may_have_lost(); // of a step whose workers all die another server may lose its part
      if (options_.together() && (all ? made != steps_ - first_step_ : made > steps_ - first_step_)) {
        simulator_.violate(
            concat("server ", place, " has made ", made, " updates of ", steps_ - first_step_, " steps"));
      }
    }
    // That of a worker which dies meanwhile may have come to one server alone, or its successor's stands for it there.
    // Where all who could commit a step die, server 0 makes it again with others, and another server that has made it
    // does not.
    for (const int64_t tag : done_) {
      const bool counts = options_.together() && server_faults_ == 0 && !is_update_lost_ && !first_again_.contains(tag);
      for (const Seen& one : last) {
        if (counts && one.tags.contains(tag) != last.front().tags.contains(tag)) {
          simulator_.violate(concat("a step has gradient ", tag, " on one server, and not on another"));
        }
      }
    }
  }

  Simulator& simulator_;
  simulation::SimulatedRpc rpc_;
  std::filesystem::path folder_;
  ServerOptions options_;
  int workers_ = 1;
  bool resumes_ = false;
  int64_t first_step_ = 0;
  int64_t steps_ = 0;
  int64_t faults_ = 0;
  int64_t server_faults_ = 0;
  int64_t breaks_ = 0;
  int restarts_ = 0;
  bool is_update_lost_ = false; // server 0 says so
  int64_t tags_ = 0;
  std::atomic<bool> stop_{false};
  std::map<std::string, Task> tasks_;
  std::map<int, int64_t> progress_;
  std::set<int64_t> first_again_; // gradients that a worker which was started again has pushed first
  std::set<int64_t> done_;        // gradients whose worker has been answered
  std::map<int64_t, std::set<int64_t>> acknowledged_; // by server
};

class ServersSimulation : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { log::set_sink(nullptr); }
};

TEST_F(ServersSimulation, NothingIsLostOrCountedTwiceAndEveryJobEnds) {
  const std::filesystem::path memory = "/dev/shm"; // a snapshot after each update is not to wait for a disk
  const std::filesystem::path parent =
      std::filesystem::exists(memory) ? memory : std::filesystem::path(testing::TempDir());
  const std::filesystem::path folder = parent / concat("trireme_simulated_servers_", ::getpid());
  simulation::run_schedules(1000, [&](Simulator& simulator) {
    Job job(simulator, folder);
    log::set_sink([&](const std::string& line) {
      simulator.note(line.substr(0, line.size() - 1));
      job.hear(line);
    });
    job.run();
    log::set_sink(nullptr);
  });
}

} // namespace
} // namespace trireme::parallel::server
