#include <trireme/launch/remote_place.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/process.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace trireme::launch {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kBeat{500};
// A host behind a slow login; ssh gives up on one that is down after 10 s (see agent_command()).
constexpr seconds kConnect{20};
// Time from the end of the connection to the end of its process, to read its last output.
constexpr milliseconds kLastWords{300};
// An agent that was asked to end has nothing left to do.
constexpr milliseconds kGoodBye{2000};

} // namespace

RemotePlace::RemotePlace(AgentSetup setup, const SignalWatch& signals, Say say)
    : setup_(std::move(setup)), say_(std::move(say)), from_(make_pipe()), complaints_(make_pipe()), to_(make_pipe()) {
  set_nonblocking(from_.read.get());
  set_nonblocking(complaints_.read.get());
  SpawnRequest request;
  request.program = find_program(setup_.command.front());
  request.arguments = setup_.command;
  request.environment = own_environment();
  request.stdin_fd = to_.read.get();
  request.stdout_fd = from_.write.get();
  request.stderr_fd = complaints_.write.get();
  request.signal_mask = signals.mask_before();
  request.on_broken_pipe = signals.broken_pipe_before();
  pid_ = spawn(request);
  to_.read.close();
  from_.write.close();
  complaints_.write.close();
  orders_.emplace(to_.write.get());
  started_at_ = heard_at_ = looked_at_ = beat_at_ = Clock::now();
  send(setup_.job);
}

void RemotePlace::dismiss() {
  orders_->flush();
  to_.write.close();
}

RemotePlace::~RemotePlace() {
  to_.write.close();
  if (pid_ > 0 && !wait_for_end(kGoodBye)) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void RemotePlace::send(const Message& order) {
  if (state_ != State::lost) {
    orders_->write(pack(order));
  }
}

void RemotePlace::listen(const std::string& address, int ranks) {
  port_.reset();
  send({{"do", "listen"}, {"address", to_text(address)}, {"ranks", ranks}});
}

void RemotePlace::start(const Share& share, PlaceEvents& events) {
  share_ = share;
  events_ = &events;
  held_ = kill_sent_ = false;
  send({{"do", "start"}, {"share", pack_share(share)}});
  if (state_ == State::ready) {
    state_ = State::running;
  }
}

void RemotePlace::signal(int number) {
  send({{"do", "signal"}, {"signal", number}});
}

void RemotePlace::stop(int number) {
  send({{"do", "stop"}, {"signal", number}});
}

void RemotePlace::kill() {
  if (!kill_sent_) {
    kill_sent_ = true;
    send({{"do", "kill"}});
  }
}

void RemotePlace::add_to(std::vector<pollfd>& polled) const {
  for (const Descriptor* end : {&from_.read, &complaints_.read}) {
    if (*end) {
      polled.push_back({end->get(), POLLIN, 0});
    }
  }
  if (state_ != State::lost && orders_->pending()) {
    polled.push_back({orders_->fd(), POLLOUT, 0});
  }
}

void RemotePlace::serve(const std::vector<pollfd>& polled) {
  for (const pollfd& one : polled) {
    if (one.revents == 0) {
      continue;
    }
    if (from_.read && one.fd == from_.read.get()) {
      read_messages();
    } else if (complaints_.read && one.fd == complaints_.read.get()) {
      read_complaints();
    } else if (state_ != State::lost && one.fd == orders_->fd()) {
      orders_->flush();
    }
  }
}

void RemotePlace::read_messages() {
  char buffer[64 * 1024];
  ssize_t got = 0;
  try {
    while ((got = ::read(from_.read.get(), buffer, sizeof(buffer))) > 0) {
      heard_at_ = Clock::now();
      reader_.add(std::string_view(buffer, static_cast<size_t>(got)));
      while (auto line = reader_.next()) {
        if (line->message) {
          handle(*line->message);
          if (state_ == State::lost) {
            return;
          }
        } else if (!line->text.empty()) {
          say_(concat(setup_.host, ": ", line->text));
        }
      }
    }
  } catch (const nlohmann::json::exception& error) {
    lose(concat("its agent speaks another language (", error.what(), ")"));
    return;
  } catch (const Error& error) {
    lose(error.what());
    return;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    lose("");
  }
}

void RemotePlace::read_complaints() {
  char buffer[16 * 1024];
  const ssize_t got = ::read(complaints_.read.get(), buffer, sizeof(buffer));
  if (got > 0) {
    complaint_lines_.add(std::string_view(buffer, static_cast<size_t>(got)), [this](std::string_view line) {
      last_complaints_.add(line);
      if (state_ != State::connecting) {  // before, they explain why the connection fails
        say_(concat(setup_.host, ": ", line));
      }
    });
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    complaints_.read.close();
  }
}

bool RemotePlace::has(int rank) const {
  return rank >= share_.first_rank && rank < share_.first_rank + share_.local_ranks;
}

void RemotePlace::handle(const Message& event) {
  const std::string is = event.at("is");
  if ((is == "output" || is == "ended") && events_ != nullptr) {
    const int rank = whole(event, "rank");
    if (!has(rank)) {
      lose(concat("its agent tells of rank ", rank, ", which does not run there"));
    } else if (is == "output") {
      events_->output(rank, whole(event, "stream") == 0 ? 0 : 1, to_bytes(event.at("text")));
    } else {
      events_->ended(rank, unpack_end(event));
    }
  } else if (is == "say" && events_ != nullptr) {
    events_->say(concat(setup_.host, ": ", to_bytes(event.at("text"))));
  } else if (is == "ready") {
    if (event.at("protocol") != kProtocol) {
      lose(concat("its agent is of another version of Trireme (it speaks protocol ", event.at("protocol").dump(),
                  ", this one ", kProtocol, ")"));
    } else {
      state_ = State::ready;
    }
  } else if (is == "over") {
    state_ = State::ready;
  } else if (is == "listening") {
    port_ = whole(event, "port");
  } else if (is == "refused") {
    const std::string text = concat("on host ", setup_.host, ": ", to_bytes(event.at("text")));
    const bool input = event.at("input");
    refusal_ = input ? std::make_exception_ptr(InputError("launch", text)) : std::make_exception_ptr(Error("launch", text));
  }
}

void RemotePlace::advance() {
  if (state_ == State::lost) {
    return;
  }
  const auto now = Clock::now();
  if (now - looked_at_ > seconds(1)) {  // this process was stopped or its machine slept: the silence was its own
    heard_at_ = started_at_ = now;
  }
  looked_at_ = now;
  if (now - beat_at_ >= kBeat) {
    beat_at_ = now;
    send({{"do", "beat"}});
  }
  if (state_ == State::connecting) {
    if (now - started_at_ > kConnect) {
      lose(concat("its agent did not answer within ", format_seconds(duration<double>(kConnect).count())));
    }
  } else if (duration<double>(now - heard_at_).count() > setup_.heartbeat_timeout) {
    lose(concat("it has said nothing for ", format_seconds(setup_.heartbeat_timeout),
                ": the machine or its network is down, or its agent is stopped"));
  }
  if (state_ == State::running && events_ != nullptr) {
    bool hold = false;
    for (int rank = share_.first_rank; rank < share_.first_rank + share_.local_ranks; ++rank) {
      hold = hold || !events_->wants(rank, 0) || !events_->wants(rank, 1);
    }
    if (hold != held_) {
      held_ = hold;
      send({{"do", "hold"}, {"on", hold}});
    }
  }
  if (refusal_) {
    std::rethrow_exception(std::exchange(refusal_, nullptr));
  }
}

std::optional<Clock::time_point> RemotePlace::wake() const {
  return state_ == State::lost ? std::nullopt : std::optional(beat_at_ + kBeat);
}

bool RemotePlace::wait_for_end(milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  pid_t ended = 0;
  while ((ended = ::waitpid(pid_, &wait_status_, WNOHANG)) == 0 && Clock::now() < deadline) {
    ::usleep(2000);
  }
  return ended != 0;
}

void RemotePlace::lose(const std::string& why) {
  const bool connecting = state_ == State::connecting;
  state_ = State::lost;
  from_.read.close();
  if (why.empty()) {
    const bool ended = wait_for_end(kLastWords);
    if (complaints_.read) {
      read_complaints();
    }
    const std::string words = last_complaints_.last();
    why_lost_ = concat(connecting ? "it cannot be reached: " : "the connection to its agent ended: ",
                       std::filesystem::path(setup_.command.front()).filename().string(), " ", ended ? describe_end(wait_status_) : "closed it", words.empty() ? "" : ": ", words);
    if (ended) {
      pid_ = -1;
      return;
    }
  } else {
    why_lost_ = why;
  }
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

} // namespace trireme::launch
