#include <trireme/launch/local_place.h>

#include <trireme/base/cores.h>
#include <trireme/base/error.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/process.h>

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

namespace trireme::launch {
LocalPlace::LocalPlace(PlaceSetup setup, SignalWatch& signals)
    : setup_(std::move(setup)),
      signals_(signals),
      lifeline_(make_pipe()),
      secret_(setup_.secret),
      environment_(own_environment()) {}

LocalPlace::~LocalPlace() = default;

const std::string& LocalPlace::why_lost() const {
  static const std::string never;
  return never;
}

void LocalPlace::listen(const std::string& address, int ranks) {
  meeting_ = open_meeting_point(address, ranks);
  program_port_ = reserve_port();
}

std::optional<Ports> LocalPlace::ports() const {
  return meeting_.socket ? std::optional(Ports{meeting_.port, program_port_.port}) : std::nullopt;
}

void LocalPlace::start(const Share& share, PlaceEvents& events) {
  events_ = &events;
  first_rank_ = share.first_rank;
  guardian_.reset();
  ranks_.clear();
  kill_sent_ = left_process_ = false;
  look_soon_ = true;
  const Descriptor nothing = open_null();
  std::vector<Descriptor> secrets;
  std::vector<SpawnRequest> requests;
  for (int rank = 0; rank < share.local_ranks; ++rank) {
    secrets.push_back(secret_.open());
    requests.push_back(request_for(share, rank, secrets.back().get(), nothing.get()));
  }
  guardian_.emplace(requests, Guardian::Terms{lease_, setup_.last_word_fd});
  running_ = true;
  if (!share.keeps_socket) {
    meeting_.socket.close();
  }
  for (Rank& rank : ranks_) {
    rank.live = true; // the caller waits for the end of each
    for (Pipe& pipe : rank.pipes) {
      pipe.write.close();
    }
  }
}

SpawnRequest LocalPlace::request_for(const Share& share, int local_rank, int secret_fd, int nothing_fd) {
  const bool first = share.first_rank + local_rank == 0;
  RankPlace place;
  place.share = share;
  place.local_rank = local_rank;
  place.host = setup_.host;
  place.run_id = setup_.run_id;
  place.listen_fd = first ? meeting_.socket.get() : -1;
  place.lifeline_fd = lifeline_.read.get();
  place.secret_fd = secret_fd;
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
  request.stdin_fd = first && setup_.stdin_fd >= 0 ? setup_.stdin_fd : nothing_fd;
  request.stdout_fd = rank.pipes[0].write.get();
  request.stderr_fd = rank.pipes[1].write.get();
  request.keep = {place.lifeline_fd, place.secret_fd};
  if (place.listen_fd >= 0) {
    request.keep.push_back(place.listen_fd);
  }
  request.signal_mask = signals_.mask_before();
  request.on_broken_pipe = signals_.broken_pipe_before();
  ranks_.push_back(std::move(rank));
  return request;
}

void LocalPlace::advance() {
  if (refusal_) {
    std::rethrow_exception(std::exchange(refusal_, nullptr));
  }
}

void LocalPlace::signal(int number) {
  if (running_) {
    guardian_->tell({{"do", "signal"}, {"signal", number}});
  }
}

void LocalPlace::stop(int number) {
  if (running_) {
    guardian_->tell({{"do", "stop"}, {"signal", number}});
  }
}

void LocalPlace::kill() {
  if (running_ && !kill_sent_) {
    kill_sent_ = true;
    guardian_->tell({{"do", "kill"}});
  }
}

void LocalPlace::lease_until(HostTime end) {
  lease_ = end;
  if (running_) {
    guardian_->tell({{"do", "lease"}, {"until", end.count()}});
  }
}

void LocalPlace::add_to(std::vector<pollfd>& polled) const {
  if (running_) {
    polled.push_back({guardian_->fd(), POLLIN, 0});
  }
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
  look_soon_ = false;
  if (running_) {
    read_events();
  }
}

void LocalPlace::read_events() {
  bool failed = false;
  while (running_) {
    const auto event = guardian_->next(false);
    if (!event) {
      break;
    }
    failed = failed || (event->at("is") == "ended" && event->at("status") != 0);
    handle(*event);
  }
  if (failed && running_) { // report all ranks that ended at the same time: a killed one is the likelier cause
    guardian_->tell({{"do", "look"}});
    for (auto event = guardian_->next(true); event && event->at("is") != "looked"; event = guardian_->next(true)) {
      handle(*event);
    }
  }
  if (running_ && guardian_->gone()) {
    lose_guardian();
  }
}

void LocalPlace::handle(const Message& event) {
  const std::string is = event.at("is");
  if (is == "started") {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].pid = event.at("pids").at(i);
    }
  } else if (is == "refused") {
    std::string text = to_bytes(event.at("text"));
    constexpr std::string_view kPart = "[launch] ";
    text = text.starts_with(kPart) ? text.substr(kPart.size()) : text;
    refusal_ = event.at("input").get<bool>() ? std::make_exception_ptr(InputError("launch", text))
                                             : std::make_exception_ptr(Error("launch", text));
    kill();
  } else if (is == "ended") {
    note_end(event.at("rank"), unpack_end(event));
  } else if (is == "say") {
    events_->say(event.at("text").get<std::string>());
  } else if (is == "over") {
    left_process_ = event.at("stuck");
    finish();
  }
}

void LocalPlace::note_end(size_t rank, const RankEnd& end) {
  ranks_[rank].live = false;
  drain(rank);
  events_->ended(first_rank_ + static_cast<int>(rank), end);
}

void LocalPlace::finish() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    drain(i);
  }
  ranks_.clear();
  running_ = false;
}

void LocalPlace::lose_guardian() {
  events_->say(concat("the process that watches the ranks (trireme-guard, pid ", guardian_->pid(),
                      ") was killed; all ranks end"));
  guardian_.reset();
  const auto ends = kill_children();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].live) {
      RankEnd end;
      end.pid = ranks_[i].pid;
      const auto found = ends.find(end.pid);
      end.wait_status = found == ends.end() ? SIGKILL : found->second;
      note_end(i, end);
    }
  }
  finish();
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
    // A pipe holds 64 KiB by default; orphans of the rank may keep writing.
    for (int reads = 0; reads < 64 && read_once(rank, stream); ++reads) {
    }
  }
}

} // namespace trireme::launch
