#include <trireme/launch/guardian.h>

#include <trireme/base/error.h>
#include <trireme/launch/descendants.h>
#include <trireme/launch/descriptor.h>
#include <trireme/launch/out_of_memory.h>
#include <trireme/launch/place.h>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kKillAgain{20};
// poll() does not count sleep of the machine; a lease does.
constexpr milliseconds kLookAtLease{500};

/// The guardian process's side.
class Keeper {
 public:
  Keeper(int line, const Guardian::Terms& terms) : line_(line), last_word_(terms.last_word_fd), lease_(terms.lease) {}

  void run(const std::vector<SpawnRequest>& requests) {
    start(requests);
    while (!over_) {
      wait();
      reap();
      advance();
    }
    if (deserted_ && !stuck_ && last_word_ >= 0) {
      const std::string word = "\n" + pack({{"is", "gone"}}); // its agent may have been killed in the middle of a line
      pollfd ready = {last_word_, POLLOUT, 0};
      if (::poll(&ready, 1, 0) > 0) {
        (void)!::write(last_word_, word.data(), word.size());
      }
    }
  }

 private:
  struct Rank {
    pid_t pid = -1;
    bool live = false;
  };

  void start(const std::vector<SpawnRequest>& requests) {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    sigset_t child;
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    children_ = Descriptor(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
    ::setsid();
    ::prctl(PR_SET_NAME, "trireme-guard");
    try {
      Message pids = Message::array();
      for (const SpawnRequest& request : requests) {
        const pid_t pid = ending() ? -1 : spawn(request, [this](int fd) { return wait_for_exec(fd); });
        ranks_.push_back({pid, pid > 0});
        pids.push_back(pid);
        live_ += pid > 0 ? 1 : 0;
        if (pid > 0 && (stopping_ || given_up_)) { // the order came while it was starting
          signal_rank(pid, end_signal_, stopping_);
        }
      }
      say({{"is", "started"}, {"pids", pids}});
      for (size_t i = 0; i < ranks_.size(); ++i) {
        if (ranks_[i].pid < 0) {
          say(pack_end(static_cast<int>(i), {.wait_status = end_signal_}));
        }
      }
    } catch (const Error& error) {
      say({{"is", "refused"}, {"input", error.exit_code() == 2}, {"text", to_text(error.what())}});
    }
    starting_ = false;
    close_all_but(last_word_ >= 0 ? std::vector{line_, children_.get(), last_word_}
                                  : std::vector{line_, children_.get()});
  }

  bool ending() const { return stopping_ || kill_until_ || given_up_; }

  /// Waits until the program runs or is refused. False: the job ends first.
  bool wait_for_exec(int fd) {
    pollfd polled[] = {{fd, POLLIN, 0}, {line_, POLLIN, 0}};
    while (polled[0].revents == 0) {
      ::poll(polled, 2, lease_ ? static_cast<int>(kLookAtLease.count()) : -1);
      if (polled[1].revents != 0) {
        read_orders();
      }
      check_lease();
      if (ending() && polled[0].revents == 0) {
        return false;
      }
    }
    return true;
  }

  void check_lease() {
    if (lease_ && host_time() >= *lease_) {
      begin_killing();
    }
  }

  void say(const Message& event) {
    const std::string text = pack(event);
    for (size_t done = 0; done < text.size() && !deserted_;) {
      const ssize_t sent = ::send(line_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (sent >= 0) {
        done += static_cast<size_t>(sent);
      } else if (errno != EINTR) {
        desert();
      }
    }
  }

  void wait() {
    pollfd polled[] = {{children_.get(), POLLIN, 0}, {deserted_ ? -1 : line_, POLLIN, 0}};
    int timeout = -1;
    if (kill_until_) {
      const double left = std::chrono::duration<double, std::milli>(killed_at_ + kKillAgain - Clock::now()).count();
      timeout = static_cast<int>(std::clamp(std::ceil(left), 0.0, 1000.0));
    } else if (lease_) {
      const double left = std::chrono::duration<double, std::milli>(*lease_ - host_time()).count();
      timeout = static_cast<int>(std::clamp(std::ceil(left), 0.0, static_cast<double>(kLookAtLease.count())));
    }
    ::poll(polled, 2, timeout);
    signalfd_siginfo info;
    while (::read(children_.get(), &info, sizeof(info)) == sizeof(info)) {
    }
    if (polled[1].revents != 0) {
      read_orders();
    }
  }

  void read_orders() {
    char buffer[4096];
    const ssize_t got = ::recv(line_, buffer, sizeof(buffer), 0);
    if (got > 0) {
      reader_.add(std::string_view(buffer, static_cast<size_t>(got)));
      while (const auto line = reader_.next()) {
        if (line->message) {
          obey(*line->message);
        }
      }
    } else if (got == 0 || errno != EINTR) {
      desert();
    }
  }

  /// The launcher is gone.
  void desert() {
    deserted_ = true;
    begin_killing();
  }

  void obey(const Message& order) {
    const std::string what = order.at("do");
    if (what == "signal") {
      const int number = order.at("signal");
      if (starting_ && number != SIGUSR2) { // a program that does not run yet has nothing to save
        given_up_ = true;
        end_signal_ = number;
      }
      for (const Rank& rank : ranks_) {
        if (rank.live) {
          ::kill(rank.pid, number);
        }
      }
    } else if (what == "stop") {
      stop(order.at("signal"));
    } else if (what == "kill") {
      begin_killing();
    } else if (what == "lease") {
      lease_ = HostTime(order.at("until").get<int64_t>());
    } else if (what == "look") {
      reap();
      say({{"is", "looked"}});
    }
  }

  void stop(int number) {
    stopping_ = true;
    end_signal_ = number;
    for (const Rank& rank : ranks_) {
      if (rank.live) {
        signal_rank(rank.pid, number, true);
      }
    }
  }

  void signal_rank(pid_t pid, int number, bool group) {
    ::kill(group ? -pid : pid, number);
    if (group) {
      ::kill(-pid, SIGCONT); // a stopped process would not get the signal
      signalled_groups_.insert(pid);
    }
  }

  void begin_killing() {
    if (!kill_until_) {
      kill_until_ = Clock::now() + kKillPatience;
      killed_at_ = {};
    }
  }

  void reap() {
    siginfo_t next{};
    while (::waitid(P_ALL, 0, &next, WEXITED | WNOHANG | WNOWAIT) == 0 && next.si_pid > 0) {
      RankEnd end;
      end.pid = next.si_pid;
      const auto rank =
          std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& one) { return one.live && one.pid == end.pid; });
      // Must precede reaping: afterwards its control group is unknown.
      if (rank != ranks_.end() && next.si_code == CLD_KILLED && next.si_status == SIGKILL) {
        end.out_of_memory = memory_.killed(end.pid);
      }
      rusage usage{};
      if (::wait4(end.pid, &end.wait_status, WNOHANG, &usage) == end.pid && rank != ranks_.end()) {
        end.peak_rss_bytes = int64_t{usage.ru_maxrss} * 1024;
        rank->live = false;
        --live_;
        say(pack_end(static_cast<int>(rank - ranks_.begin()), end));
      }
      next = {};
    }
    // Result 0 without a pid: there are children, and all of them run.
    siginfo_t any{};
    children_left_ = ::waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT) == 0;
  }

  void advance() {
    check_lease();
    if (kill_until_ && children_left_ && Clock::now() - killed_at_ >= kKillAgain) {
      killed_at_ = Clock::now();
      kill_all();
      reap();
      if (killed_at_ >= *kill_until_) {
        say({{"is", "say"},
             {"text", "a process does not end although it was killed; it hangs in the kernel (see ps, state D)"}});
        children_left_ = false;
        stuck_ = true;
      }
    } else if (stopping_ && live_ == 0 && children_left_ && !leftovers_reported_) {
      stop_leftovers();
    }
    if ((stopping_ || kill_until_) && !children_left_) {
      over_ = true;
      say({{"is", "over"}, {"stuck", stuck_}});
    }
  }

  void stop_leftovers() {
    leftovers_reported_ = true;
    for (const pid_t pid : descendants(::getpid())) {
      if (signalled_groups_.count(::getpgid(pid)) == 0) {
        ::kill(pid, SIGTERM);
        ::kill(pid, SIGCONT);
      }
    }
  }

  void kill_all() {
    for (const Rank& rank : ranks_) {
      if (rank.live) {
        ::kill(-rank.pid, SIGKILL);
      }
    }
    for (const pid_t pid : descendants(::getpid())) {
      ::kill(pid, SIGKILL);
    }
  }

  const int line_;
  const int last_word_;
  std::optional<HostTime> lease_;
  const OrphanAdoption adoption_;
  OutOfMemoryWatch memory_;
  Descriptor children_;
  MessageReader reader_;
  std::vector<Rank> ranks_;
  size_t live_ = 0;
  bool deserted_ = false;
  bool children_left_ = true;
  bool starting_ = true;
  bool given_up_ = false;
  int end_signal_ = SIGKILL; // of ranks that were not started because the job ended before
  bool stopping_ = false;
  bool leftovers_reported_ = false;
  bool over_ = false;
  bool stuck_ = false;
  std::set<pid_t> signalled_groups_;
  std::optional<Clock::time_point> kill_until_;
  Clock::time_point killed_at_{};
};

} // namespace

Guardian::Guardian(const std::vector<SpawnRequest>& ranks, const Terms& terms) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error("launch", concat("cannot make a pair of sockets: ", std::strerror(errno)),
                "Raise the limit on open files (ulimit -n).");
  }
  line_ = Descriptor(ends[0]);
  Descriptor other(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) {
    line_.close(); // a second holder of the launcher's end would hide its death
    try {
      Keeper(other.get(), terms).run(ranks);
    } catch (...) {
      ::_exit(1); // the launcher then kills the rest
    }
    ::_exit(0);
  }
  if (pid_ < 0) {
    throw Error("launch", concat("cannot start another process: ", std::strerror(errno)),
                "Raise the limits on processes and memory.");
  }
}

Guardian::~Guardian() {
  line_.close();
  ::kill(pid_, SIGCONT);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::tell(const Message& order) {
  ::kill(pid_, SIGCONT);
  const std::string text = pack(order);
  for (size_t done = 0; done < text.size();) {
    const ssize_t sent = ::send(line_.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (sent >= 0) {
      done += static_cast<size_t>(sent);
    } else if (errno != EINTR) {
      return; // next() reports it
    }
  }
}

std::optional<Message> Guardian::next(bool wait) {
  for (;;) {
    if (auto line = reader_.next()) {
      if (line->message) {
        return std::move(line->message);
      }
      continue;
    }
    if (gone_) {
      return std::nullopt;
    }
    char buffer[16 * 1024];
    const ssize_t got = ::recv(line_.get(), buffer, sizeof(buffer), wait ? 0 : MSG_DONTWAIT);
    if (got > 0) {
      reader_.add(std::string_view(buffer, static_cast<size_t>(got)));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      gone_ = true;
    } else if (errno == EAGAIN) {
      return std::nullopt;
    }
  }
}

} // namespace trireme::launch
