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

/// What runs in the guardian's process.
class Keeper {
 public:
  explicit Keeper(int line) : line_(line) {}

  void run(const std::vector<SpawnRequest>& requests) {
    start(requests);
    while (!over_) {
      wait();
      reap();
      advance();
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
        ranks_.push_back({spawn(request), true});
        pids.push_back(ranks_.back().pid);
        ++live_;
      }
      say({{"is", "started"}, {"pids", pids}});
    } catch (const Error& error) {
      say({{"is", "refused"}, {"input", error.exit_code() == 2}, {"text", to_text(error.what())}});
    }
    // The launcher's end of the line above all: as long as anybody holds it, the launcher's death does not show.
    close_all_but({line_, children_.get()});
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
      for (const Rank& rank : ranks_) {
        if (rank.live) {
          ::kill(rank.pid, order.at("signal"));
        }
      }
    } else if (what == "stop") {
      stop(order.at("signal"));
    } else if (what == "kill") {
      begin_killing();
    } else if (what == "look") {
      reap();
      say({{"is", "looked"}});
    }
  }

  void stop(int number) {
    stopping_ = true;
    for (const Rank& rank : ranks_) {
      if (rank.live) {
        ::kill(-rank.pid, number);
        ::kill(-rank.pid, SIGCONT);  // a stopped process would not get the signal
        signalled_groups_.insert(rank.pid);
      }
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
      const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& one) { return one.live && one.pid == end.pid; });
      // Asks before the process is reaped: afterwards its control group is unknown.
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
    // 0 and no pid: there are children, all of them running.
    siginfo_t any{};
    children_left_ = ::waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT) == 0;
  }

  void advance() {
    if (kill_until_ && children_left_ && Clock::now() - killed_at_ >= kKillAgain) {
      killed_at_ = Clock::now();
      kill_all();
      reap();
      if (killed_at_ >= *kill_until_) {
        say({{"is", "say"}, {"text", "a process does not end although it was killed; it hangs in the kernel (see ps, state D)"}});
        children_left_ = false;
      }
    } else if (stopping_ && live_ == 0 && children_left_ && !leftovers_reported_) {
      stop_leftovers();
    }
    if ((stopping_ || kill_until_) && !children_left_) {
      over_ = true;
      say({{"is", "over"}});
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
  const OrphanAdoption adoption_;
  OutOfMemoryWatch memory_;
  Descriptor children_;
  MessageReader reader_;
  std::vector<Rank> ranks_;
  size_t live_ = 0;
  bool deserted_ = false;
  bool children_left_ = true;
  bool stopping_ = false;
  bool leftovers_reported_ = false;
  bool over_ = false;
  std::set<pid_t> signalled_groups_;
  std::optional<Clock::time_point> kill_until_;
  Clock::time_point killed_at_{};
};

} // namespace

Guardian::Guardian(const std::vector<SpawnRequest>& ranks) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error("launch", concat("cannot make a pair of sockets: ", std::strerror(errno)), "Raise the limit on open files (ulimit -n).");
  }
  line_ = Descriptor(ends[0]);
  Descriptor other(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) {
    try {
      Keeper(other.get()).run(ranks);
    } catch (...) {
      ::_exit(1);  // the launcher sees it and kills what is left
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
      return;  // next() reports it
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
