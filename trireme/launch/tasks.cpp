#include <trireme/launch/tasks.h>

#include <trireme/base/error.h>
#include <trireme/launch/exit_codes.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>

namespace trireme::launch {
namespace {

class Tasks {
 public:
  Tasks(const Job& job, std::vector<Member> places, std::vector<std::string> addresses) : job_(job) {
    job_.on_signal = [this](int number) { take_signal(number); };
    const int workers = job.options.ranks;
    for (size_t i = 0; i < places.size(); ++i) {
      const auto number = static_cast<int>(i);
      const bool server = number >= workers;
      One one{places[i], addresses[i], {}, nullptr, server, 0, std::nullopt};
      one.task.kind = server ? "server" : "worker";
      one.task.number = server ? number - workers : number;
      one.task.shown = job.options.all_output ? Shown::with_prefix : number == 0 ? Shown::as_it_is : Shown::not_at_all;
      one.task.variables = {{server ? "TRIREME_SERVER" : "TRIREME_WORKER",
                             concat(one.task.number, "/", server ? job.options.servers : workers)}};
      const auto here = [&](int first, int last) {
        return std::count_if(places.begin() + first, places.begin() + last,
                             [&](const Member& other) { return other.name == places[i].name; });
      };
      if (!server) {
        one.task.variables.emplace_back("TRIREME_LOCAL_WORKER", concat(here(0, number), "/", here(0, workers)));
      }
      one.task.neighbours = static_cast<int>(here(0, static_cast<int>(places.size()))) - 1;
      tasks_.push_back(std::move(one));
    }
    for (One& one : tasks_) {
      start(one);
    }
  }

  Outcome run() {
    try {
      while (true) {
        for (One& one : tasks_) {
          if (one.attempt) {
            one.attempt->advance();
          }
        }
        release_when_all_listen();
        bool again = false;
        for (One& one : tasks_) {
          if (one.attempt && one.attempt->over()) {
            note_end(one);
            again = true;
          }
        }
        if (!running(true) && !servers_asked_) {
          end_servers();
          again = true;
        }
        if (again) { // an attempt can continue at once
          continue;
        }
        const std::vector<Attempt*> left = attempts();
        if (left.empty()) {
          return outcome();
        }
        wait_for_events(job_, left);
      }
    } catch (...) {
      job_.on_signal = [](int) {};
      for (Attempt* attempt : attempts()) {
        attempt->kill();
      }
      throw;
    }
  }

 private:
  struct One {
    Member place;
    std::string address;
    Task task;
    std::unique_ptr<Attempt> attempt;
    bool server = false;
    int restarts = 0;
    /// Its final outcome.
    std::optional<Outcome> end;
  };

  void start(One& one) {
    one.attempt = std::make_unique<Attempt>(job_, one.restarts, one.place, one.address, job_.options.command, one.task);
    if (released_) {
      one.attempt->release({{"TRIREME_SERVERS", servers_}});
    }
  }

  void release_when_all_listen() {
    const auto is_settled = [](const One& one) { return one.end || (one.attempt && one.attempt->assembled()); };
    if (released_ || ending_ || !std::all_of(tasks_.begin(), tasks_.end(), is_settled)) {
      return; // an ended worker does not count; an ended server ends the job
    }
    released_ = true;
    for (const One& one : tasks_) {
      if (one.server) {
        const bool brackets = one.address.find(':') != std::string::npos;
        servers_ += concat(servers_.empty() ? "" : ",", job_.options.server_scheme, "://", brackets ? "[" : "",
                           one.address, brackets ? "]" : "", ":", one.place.place.ports()->store);
      }
    }
    for (One& one : tasks_) {
      if (one.attempt) {
        one.attempt->release({{"TRIREME_SERVERS", servers_}});
        one.attempt->advance();
      }
    }
  }

  void note_end(One& one) {
    const Outcome outcome = one.attempt->finish();
    one.attempt.reset();
    const bool early = one.server && !ending_ && outcome.exit_code == 0 && running(true); // a server must not end first
    const bool good = outcome.exit_code == 0 && !early;
    const std::string who = concat(one.task.kind, " ", one.task.number);
    if (good || ending_) {
      one.end = outcome;
      return;
    }
    if (const std::string superseded = job_.options.superseded ? job_.options.superseded() : ""; !superseded.empty()) {
      job_.screen.say(concat(who, " is not started again: ", superseded));
      one.end = outcome;
      fail(outcome);
      return;
    }
    if (outcome.exit_code == kWrongInput) {
      one.end = outcome;
      fail(outcome);
      return;
    }
    if (outcome.exit_code == kNotSaved && !one.server) {
      job_.screen.say(concat(who, " has finished training and could not save the result: it is not started again"));
      one.end = outcome;
      return;
    }
    const bool reachable = one.place.place.state() != Place::State::lost;
    if (reachable && restarts_ < job_.options.max_restarts) {
      ++restarts_;
      ++one.restarts;
      job_.screen.say(concat(early ? who + " ended although there are workers" : outcome.cause,
                             ", starting it again (restart ", restarts_, " of ", job_.options.max_restarts, ")"));
      start(one);
      return;
    }
    one.end = outcome;
    const std::string why =
        reachable ? concat("all ", job_.options.max_restarts, " restarts are used") : "its host is lost";
    if (one.server) {
      job_.screen.say(
          released_ ? concat(who, " is not started again (", why, "), and its state is lost: the job ends")
                    : concat(who, " cannot be started (", why, "), and no worker can train without it: the job ends"));
      fail(outcome);
      return;
    }
    const auto left =
        std::count_if(tasks_.begin(), tasks_.end(), [](const One& other) { return !other.server && other.attempt; });
    if (left > 0) {
      job_.screen.say(concat(who, " is not started again (", why, "): the job goes on with ", left,
                             left == 1 ? " worker" : " workers"));
    } else {
      job_.screen.say(concat(who, " is not started again (", why, "), and no other worker runs"));
    }
  }

  /// Ends the job because of one task.
  void fail(const Outcome& outcome) {
    if (!failure_) {
      failure_ = outcome;
      failure_->exit_code = std::max(1, outcome.exit_code);
    }
    ending_ = servers_asked_ = true;
    for (Attempt* attempt : attempts()) {
      attempt->take_signal(SIGINT); // workers would wait for the server, and cannot save without it
    }
  }

  void end_servers() {
    ending_ = servers_asked_ = true;
    for (Attempt* attempt : attempts()) {
      attempt->ask_to_end();
    }
  }

  void take_signal(int number) {
    const bool asks_to_end =
        number == SIGINT || number == SIGTERM || number == SIGHUP || (number == SIGUSR1 && job_.options.preemptible);
    const bool saves = asks_to_end && job_.options.preemptible && number != SIGINT;
    if (asks_to_end && received_signal_ == 0) {
      received_signal_ = number;
      ending_ = true;
      servers_asked_ = servers_asked_ || !saves;
    }
    for (One& one : tasks_) {
      // A second request is for all: attempts that had the first one are killed.
      if (one.attempt && (!one.server || !saves || !running(true))) {
        one.attempt->take_signal(number);
      }
    }
  }

  /// Whether a worker (or, false, a server) runs.
  bool running(bool workers) const {
    return std::any_of(tasks_.begin(), tasks_.end(),
                       [&](const One& one) { return one.server != workers && one.attempt; });
  }

  std::vector<Attempt*> attempts() const {
    std::vector<Attempt*> left;
    for (const One& one : tasks_) {
      if (one.attempt) {
        left.push_back(one.attempt.get());
      }
    }
    return left;
  }

  Outcome outcome() const {
    Outcome outcome;
    if (failure_) {
      return *failure_;
    }
    outcome.received_signal = received_signal_;
    bool any_well = false;
    for (const One& one : tasks_) {
      any_well = any_well || (!one.server && one.end->exit_code == 0);
      outcome.not_begun = outcome.not_begun || (!one.server && one.end->not_begun);
      const bool by_us = servers_asked_ && one.end->exit_code == 128 + SIGTERM; // it has no handler for the signal
      if (one.end->exit_code != 0 && ((one.server && !by_us) || outcome.exit_code == 0)) {
        outcome.exit_code = one.end->exit_code;
        outcome.cause = one.end->cause;
      }
    }
    const auto not_saved = std::find_if(tasks_.begin(), tasks_.end(),
                                        [](const One& one) { return !one.server && one.end->exit_code == kNotSaved; });
    if (not_saved != tasks_.end()) { // whatever the other outcomes are
      outcome.exit_code = 1;
      outcome.cause = not_saved->end->cause;
      return outcome;
    }
    const bool servers_well = std::all_of(tasks_.begin(), tasks_.end(),
                                          [](const One& one) { return !one.server || one.end->exit_code == 0; });
    if (any_well && servers_well) {
      outcome.exit_code = 0;
    }
    if (received_signal_ != 0 && outcome.exit_code != 0) {
      outcome.exit_code = 128 + received_signal_;
    }
    return outcome;
  }

  Job job_;
  std::vector<One> tasks_;
  std::string servers_;
  bool released_ = false;
  bool ending_ = false;
  bool servers_asked_ = false;
  int restarts_ = 0;
  int received_signal_ = 0;
  std::optional<Outcome> failure_;
};

} // namespace

std::vector<Host> hosts_of_tasks(const std::vector<Host>& hosts, int workers, int servers) {
  std::vector<Host> chosen;
  for (const Host& host : hosts) {
    for (int slot = 0; slot < host.slots && static_cast<int>(chosen.size()) < workers; ++slot) {
      chosen.push_back(host);
    }
  }
  if (static_cast<int>(chosen.size()) < workers) {
    throw InputError("launch", concat(workers, " workers do not fit on the ", chosen.size(), " slots of the hostfile"),
                     "Add hosts or slots, or ask for fewer workers.");
  }
  for (int server = 0; server < servers; ++server) {
    chosen.push_back(hosts[static_cast<size_t>(server) % hosts.size()]);
  }
  for (Host& host : chosen) {
    host.slots = 1;
  }
  return chosen;
}

Outcome run_tasks(const Job& job, std::vector<Member> places, std::vector<std::string> addresses) {
  return Tasks(job, std::move(places), std::move(addresses)).run();
}

} // namespace trireme::launch
