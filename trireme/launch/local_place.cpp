#include <trireme/launch/local_place.h>

#include <trireme/base/cores.h>
#include <trireme/base/error.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/process.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kKillAgain{20};
// SIGKILL does not end a process that hangs in the kernel (a dead network disk).
constexpr milliseconds kKillPatience{10'000};

} // namespace

LocalPlace::LocalPlace(PlaceSetup setup, SignalWatch& signals)
    : setup_(std::move(setup)), signals_(signals), guardian_(setup_.most_ranks), lifeline_(make_pipe()), secret_(setup_.secret),
      environment_(own_environment()) {}

LocalPlace::~LocalPlace() {
  if (running_) {
    kill_all();
  }
}

const std::string& LocalPlace::why_lost() const {
  static const std::string never;
  return never;
}

void LocalPlace::listen(const std::string& address, int ranks) {
  meeting_ = open_meeting_point(address, ranks);
}

std::optional<int> LocalPlace::port() const {
  return meeting_.socket ? std::optional(meeting_.port) : std::nullopt;
}

void LocalPlace::start(const Share& share, PlaceEvents& events) {
  events_ = &events;
  first_rank_ = share.first_rank;
  ranks_.clear();
  told_groups_.clear();
  running_ = children_left_ = true;
  stopping_ = leftovers_told_ = false;
  kill_until_.reset();
  for (int rank = 0; rank < share.local_ranks; ++rank) {
    start_rank(share, rank);
  }
  meeting_.socket.close();
}

void LocalPlace::start_rank(const Share& share, int local_rank) {
  const bool first = share.first_rank + local_rank == 0;
  RankPlace place;
  place.share = share;
  place.local_rank = local_rank;
  place.host = setup_.host;
  place.run_id = setup_.run_id;
  place.listen_fd = first ? meeting_.socket.get() : -1;
  place.lifeline_fd = lifeline_.read.get();
  const Descriptor secret = secret_.open();
  place.secret_fd = secret.get();
  place.usable_cores = trireme::usable_cores();

  Rank rank;
  for (Pipe& pipe : rank.pipes) {
    pipe = make_pipe();
    set_nonblocking(pipe.read.get());
  }
  SpawnRequest request;
  request.program = find_program(share.command.front());
  request.arguments = share.command;
  request.environment = rank_environment(place, environment_, setup_.extra_env);
  const Descriptor nothing = open_null();
  request.stdin_fd = first && setup_.stdin_fd >= 0 ? setup_.stdin_fd : nothing.get();
  request.stdout_fd = rank.pipes[0].write.get();
  request.stderr_fd = rank.pipes[1].write.get();
  request.keep = {place.lifeline_fd, place.secret_fd};
  if (place.listen_fd >= 0) {
    request.keep.push_back(place.listen_fd);
  }
  request.guardian_fd = guardian_.fd();
  request.signal_mask = signals_.mask_before();
  request.on_broken_pipe = signals_.broken_pipe_before();
  rank.pid = spawn(request);
  rank.live = true;
  for (Pipe& pipe : rank.pipes) {
    pipe.write.close();
  }
  ranks_.push_back(std::move(rank));
  ++live_;
}

void LocalPlace::signal(int number) {
  for (const Rank& rank : ranks_) {
    if (rank.live) {
      ::kill(rank.pid, number);
    }
  }
}

void LocalPlace::stop(int number) {
  stopping_ = true;
  for (const Rank& rank : ranks_) {
    if (rank.live) {
      ::kill(-rank.pid, number);
      ::kill(-rank.pid, SIGCONT);  // a stopped process would never hear of it
      told_groups_.insert(rank.pid);
    }
  }
}

void LocalPlace::kill() {
  if (running_ && !kill_until_) {
    kill_until_ = Clock::now() + kKillPatience;
    killed_at_ = {};
  }
}

void LocalPlace::add_to(std::vector<pollfd>& polled) const {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    for (int stream = 0; stream < 2; ++stream) {
      const Descriptor& end = ranks_[i].pipes[static_cast<size_t>(stream)].read;
      if (end && events_->wants(first_rank_ + static_cast<int>(i), stream)) {
        polled.push_back({end.get(), POLLIN, 0});
      }
    }
  }
}

void LocalPlace::serve(const std::vector<pollfd>& polled) {
  for (const pollfd& one : polled) {
    if (one.revents == 0) {
      continue;
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      for (int stream = 0; stream < 2; ++stream) {
        if (ranks_[i].pipes[static_cast<size_t>(stream)].read.get() == one.fd) {
          read_once(i, stream);
        }
      }
    }
  }
}

bool LocalPlace::read_once(size_t rank, int stream) {
  Descriptor& end = ranks_[rank].pipes[static_cast<size_t>(stream)].read;
  if (!end) {
    return false;
  }
  char buffer[64 * 1024];
  const ssize_t got = ::read(end.get(), buffer, sizeof(buffer));
  if (got > 0) {
    events_->output(first_rank_ + static_cast<int>(rank), stream, std::string_view(buffer, static_cast<size_t>(got)));
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    end.close();
  }
  return false;
}

void LocalPlace::drain(size_t rank) {
  for (int stream = 0; stream < 2; ++stream) {
    // A pipe holds 64 KiB unless somebody enlarged it; a child of the rank may go on writing without end.
    for (int reads = 0; reads < 64 && read_once(rank, stream); ++reads) {
    }
  }
}

void LocalPlace::child_ended() {
  siginfo_t next{};
  while (::waitid(P_ALL, 0, &next, WEXITED | WNOHANG | WNOWAIT) == 0 && next.si_pid > 0) {
    RankEnd end;
    end.pid = next.si_pid;
    size_t i = 0;
    while (i < ranks_.size() && !(ranks_[i].live && ranks_[i].pid == end.pid)) {
      ++i;
    }
    // Of a process that has been reaped nobody can tell which control group it was in.
    end.out_of_memory = i < ranks_.size() && next.si_code == CLD_KILLED && next.si_status == SIGKILL && memory_.killed(end.pid);
    rusage usage{};
    if (::wait4(end.pid, &end.wait_status, WNOHANG, &usage) == end.pid && i < ranks_.size()) {
      end.peak_rss_bytes = int64_t{usage.ru_maxrss} * 1024;
      ranks_[i].live = false;
      --live_;
      guardian_.forget(end.pid);
      drain(i);
      events_->ended(first_rank_ + static_cast<int>(i), end);
    }
    next = {};
  }
  // 0 and no pid: there are children, all of them running.
  siginfo_t any{};
  children_left_ = ::waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void LocalPlace::advance() {
  if (!running_) {
    return;
  }
  if (kill_until_ && children_left_ && Clock::now() - killed_at_ >= kKillAgain) {
    killed_at_ = Clock::now();
    kill_all();
    child_ended();
    if (killed_at_ >= *kill_until_) {
      events_->say("a process does not end although it was killed; it hangs in the kernel (see ps, state D)");
      children_left_ = false;
    }
  } else if (stopping_ && live_ == 0 && children_left_ && !leftovers_told_) {
    end_leftovers();
  }
  if ((stopping_ || kill_until_) && !children_left_) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      drain(i);
    }
    ranks_.clear();
    live_ = 0;
    running_ = false;
  }
}

std::optional<Clock::time_point> LocalPlace::wake() const {
  return running_ && kill_until_ ? std::optional(killed_at_ + kKillAgain) : std::nullopt;
}

void LocalPlace::end_leftovers() {
  leftovers_told_ = true;
  for (const pid_t pid : descendants(::getpid(), guardian_.pid())) {
    if (told_groups_.count(::getpgid(pid)) == 0) {
      ::kill(pid, SIGTERM);
      ::kill(pid, SIGCONT);
    }
  }
}

void LocalPlace::kill_all() {
  for (const Rank& rank : ranks_) {
    if (rank.live) {
      ::kill(-rank.pid, SIGKILL);
    }
  }
  for (const pid_t pid : descendants(::getpid(), guardian_.pid())) {
    ::kill(pid, SIGKILL);
  }
}

} // namespace trireme::launch
