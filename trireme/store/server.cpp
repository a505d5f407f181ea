#include <trireme/store/server_loop.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/store/messages.h>
#include <trireme/store/sockets.h>

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kListener = 0;
constexpr uint64_t kWake = 1;
constexpr uint64_t kFirstConnection = 2;
constexpr int kAcceptedAtOnce = 32;
constexpr size_t kReadAtOnce = 64 << 10;
/// A newer connection does not displace one younger than this: thousands of ranks that start at once would displace
/// each other.
constexpr milliseconds kLeastStay{200};
constexpr milliseconds kBetweenWarnings{1000};

} // namespace

Server::Server(int listening, ServerOptions options) : loop_(std::make_unique<Loop>(listening, std::move(options))) {}
Server::~Server() = default;

int64_t Server::refused() const {
  return loop_->refused;
}

int64_t Server::connections() const {
  return loop_->connections;
}

Server::Loop::Loop(int listening, ServerOptions options)
    : options_(std::move(options)),
      listening_(listening),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      buffer_(kReadAtOnce),
      next_number_(kFirstConnection) {
  epoll_event listener{.events = EPOLLIN, .data = {.u64 = kListener}};
  epoll_event wake{.events = EPOLLIN, .data = {.u64 = kWake}};
  if (!events_ || !wake_ || !set_nonblocking(listening_.get()) ||
      epoll_ctl(events_.get(), EPOLL_CTL_ADD, listening_.get(), &listener) != 0 ||
      epoll_ctl(events_.get(), EPOLL_CTL_ADD, wake_.get(), &wake) != 0) {
    throw Error("store", concat("cannot serve the rendezvous of the ranks: ", std::strerror(errno), "."),
                "Raise the limit on open files (ulimit -n).");
  }
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Server::Loop::~Loop() {
  stopping_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void Server::Loop::run() {
  while (!stopping_) {
    wait_for_events();
    reply_to_ready();
    expire();
    tell_refused(false);
  }
  tell_refused(true);
}

void Server::Loop::wait_for_events() {
  std::array<epoll_event, 64> happened;
  const int count =
      epoll_wait(events_.get(), happened.data(), static_cast<int>(happened.size()), milliseconds_to_next());
  bool knocked = false;
  for (int place = 0; place < count; ++place) {
    const uint64_t number = happened[place].data.u64;
    knocked = knocked || number == kListener;
    if (number >= kFirstConnection) {
      serve(number, happened[place].events);
      reply_to_ready();
    }
  }
  // Accepts last, so that existing connections are served first.
  if (knocked) {
    accept_some();
  }
}

int Server::Loop::milliseconds_to_next() const {
  auto next = Clock::time_point::max();
  if (!deadlines_.empty()) {
    next = deadlines_.begin()->first;
  }
  if (listener_rests_until_) {
    next = std::min(next, *listener_rests_until_);
  }
  if (unreported_ > 0) {
    next = std::min(next, reported_at_ + kBetweenWarnings);
  }
  if (next == Clock::time_point::max()) {
    return -1;
  }
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void Server::Loop::accept_some() {
  for (int turn = 0; turn < kAcceptedAtOnce; ++turn) {
    if (strangers_.size() >= options_.most_strangers) {
      const uint64_t oldest = *strangers_.begin();
      const auto stays_until = connections_.at(oldest).since + kLeastStay;
      if (Clock::now() < stays_until) {
        listener_waits_for_room_ = true;
        rest_listener(stays_until);
        return;
      }
      turn_away(oldest, "it sent nothing while others wait");
      drop_ended();
    }
    Descriptor socket(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      // Without a free descriptor epoll would report the same connection again and again.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (!strangers_.empty()) {
          turn_away(*strangers_.begin(), "this process has no file descriptors left");
          drop_ended();
        }
        rest_listener(Clock::now() + kLeastStay);
      }
      return;
    }
    prepare_connection(socket.get());
    const uint64_t number = next_number_++;
    Connection& connection = connections_[number];
    connection.peer = peer_name(socket.get());
    connection.socket = std::move(socket);
    connection.since = Clock::now();
    connection.greeting = make_greeting(options_.job);
    connection.out.assign(connection.greeting.data(), connection.greeting.size());
    strangers_.insert(number);
    set_deadline(number, connection, connection.since + options_.stranger_patience);
    epoll_event interest{.events = EPOLLIN | EPOLLRDHUP, .data = {.u64 = number}};
    connection.interest = interest.events;
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, connection.socket.get(), &interest) != 0) {
      drop(number);
      continue;
    }
    send_rest(connection);
    watch(number, connection);
  }
}

void Server::Loop::rest_listener(Clock::time_point until) {
  listener_rests_until_ = until;
  epoll_event none{.events = 0, .data = {.u64 = kListener}};
  epoll_ctl(events_.get(), EPOLL_CTL_MOD, listening_.get(), &none);
}

void Server::Loop::wake_listener() {
  listener_rests_until_.reset();
  listener_waits_for_room_ = false;
  epoll_event again{.events = EPOLLIN, .data = {.u64 = kListener}};
  epoll_ctl(events_.get(), EPOLL_CTL_MOD, listening_.get(), &again);
}

void Server::Loop::serve(uint64_t number, uint32_t events) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) {
    return; // ended by an earlier event of this call
  }
  Connection& connection = found->second;
  if ((events & EPOLLOUT) != 0) {
    send_rest(connection);
    handle_requests(number, connection);
  }
  const bool listening_to = !connection.parked && connection.out.empty();
  if ((events & (EPOLLIN | EPOLLRDHUP)) != 0 && listening_to) {
    receive(number, connection);
  } else if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    end(number);
  }
  watch(number, connection);
  drop_ended();
}

void Server::Loop::receive(uint64_t number, Connection& connection) {
  const size_t wanted = connection.trusted ? buffer_.size() : kAnswerBytes - connection.in.size();
  const ssize_t count = ::recv(connection.socket.get(), buffer_.data(), wanted, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count <= 0) {
    if (!connection.trusted && !connection.in.empty()) {
      turn_away(number, "it closed the connection during the handshake");
    } else {
      end(number);
    }
    return;
  }
  connection.in.append(buffer_.data(), static_cast<size_t>(count));
  if (connection.trusted) {
    handle_requests(number, connection);
  } else {
    examine(number, connection);
  }
}

void Server::Loop::examine(uint64_t number, Connection& connection) {
  if (!may_become_answer(connection.in)) {
    turn_away(number, "it speaks another protocol");
    return;
  }
  if (connection.in.size() < kAnswerBytes) {
    return;
  }
  Answer answer;
  std::copy(connection.in.begin(), connection.in.end(), answer.begin());
  connection.in.clear();
  if (!verify_answer(options_.secret, connection.greeting, answer)) {
    turn_away(number, "it has another secret");
    connection.out = kRefused;
    send_rest(connection);
    return;
  }
  const Proof proof = make_proof(options_.secret, connection.greeting, answer);
  connection.out = kAccepted;
  connection.out.append(proof.data(), proof.size());
  connection.trusted = true;
  strangers_.erase(number);
  set_deadline(number, connection, Clock::time_point::max());
  ++connections;
  send_rest(connection);
}

void Server::Loop::handle_requests(uint64_t number, Connection& connection) {
  try {
    while (!connection.parked && connection.out.empty() && connection.trusted && connection.in.size() >= kLengthBytes &&
           ending_.count(number) == 0) {
      const uint32_t length = message_length(connection.in);
      if (connection.in.size() < kLengthBytes + length) {
        return;
      }
      const std::string request = connection.in.substr(kLengthBytes, length);
      connection.in.erase(0, kLengthBytes + length);
      carry_out_one(number, connection, request);
    }
  } catch (const BadMessage& problem) {
    turn_away(number, problem.happened);
  }
}

void Server::Loop::carry_out_one(uint64_t number, Connection& connection, std::string_view request) {
  Outcome outcome = carry_out(table_, number, request);
  if (auto* reply = std::get_if<std::string>(&outcome)) {
    connection.out = std::move(*reply);
    send_rest(connection);
  } else if (const auto* parked = std::get_if<Parked>(&outcome)) {
    connection.parked = true;
    set_deadline(number, connection, Clock::now() + parked->timeout);
  } else {
    auto& will = std::get<LastWill>(outcome);
    connection.out = std::move(will.reply);
    connection.will = will.key.empty() ? std::nullopt : std::optional(std::move(will));
    send_rest(connection);
  }
}

void Server::Loop::send_rest(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t count = ::send(connection.socket.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return; // if full, EPOLLOUT follows; if broken, EPOLLHUP
    }
    connection.out.erase(0, static_cast<size_t>(count));
  }
}

void Server::Loop::reply_to_ready() {
  for (auto ready = table_.take_ready(); !ready.empty(); ready = table_.take_ready()) {
    for (const uint64_t number : ready) {
      finish_wait(number, true);
    }
  }
}

void Server::Loop::finish_wait(uint64_t number, bool all_there) {
  const auto found = connections_.find(number);
  if (found == connections_.end() || !found->second.parked) {
    return;
  }
  Connection& connection = found->second;
  table_.forget(number);
  connection.parked = false;
  set_deadline(number, connection, Clock::time_point::max());
  connection.out = waited(all_there);
  send_rest(connection);
  handle_requests(number, connection);
  watch(number, connection);
  drop_ended();
}

void Server::Loop::expire() {
  const auto now = Clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t number = deadlines_.begin()->second;
    if (connections_.at(number).trusted) {
      finish_wait(number, false);
      reply_to_ready();
    } else {
      turn_away(number, "it did not prove in time that it belongs to the job");
      drop_ended();
    }
  }
  const bool room = listener_waits_for_room_ && strangers_.size() < options_.most_strangers;
  if (listener_rests_until_ && (room || *listener_rests_until_ <= now)) {
    wake_listener();
  }
}

void Server::Loop::set_deadline(uint64_t number, Connection& connection, Clock::time_point deadline) {
  deadlines_.erase({connection.deadline, number});
  connection.deadline = deadline;
  if (deadline != Clock::time_point::max()) {
    deadlines_.insert({deadline, number});
  }
}

void Server::Loop::watch(uint64_t number, Connection& connection) {
  const uint32_t wanted = EPOLLRDHUP | (connection.parked || !connection.out.empty() ? 0u : EPOLLIN) |
                          (connection.out.empty() ? 0u : EPOLLOUT);
  if (wanted != connection.interest) {
    connection.interest = wanted;
    epoll_event interest{.events = wanted, .data = {.u64 = number}};
    epoll_ctl(events_.get(), EPOLL_CTL_MOD, connection.socket.get(), &interest);
  }
}

void Server::Loop::turn_away(uint64_t number, const std::string& why) {
  ++refused;
  ++unreported_;
  last_refusal_ = concat(connections_.at(number).peer, ": ", why);
  end(number);
}

void Server::Loop::end(uint64_t number) {
  ending_.insert(number);
}

void Server::Loop::drop_ended() {
  while (!ending_.empty()) {
    drop(ending_.extract(ending_.begin()).value());
  }
}

void Server::Loop::drop(uint64_t number) {
  const auto found = connections_.find(number);
  Connection& connection = found->second;
  set_deadline(number, connection, Clock::time_point::max());
  table_.forget(number);
  strangers_.erase(number);
  connections -= connection.trusted ? 1 : 0;
  const auto will = std::move(connection.will);
  connections_.erase(found);
  if (will) {
    table_.set(will->key, will->value);
    if (!will->counter.empty()) {
      table_.add(will->counter, 1);
    }
  }
}

void Server::Loop::tell_refused(bool at_end) {
  const auto now = Clock::now();
  if (unreported_ == 0 || (!at_end && now < reported_at_ + kBetweenWarnings)) {
    return;
  }
  log::warning("the rendezvous of the ranks has refused ", unreported_,
               unreported_ == 1 ? " connection" : " connections", " that did not prove to belong to this job (last ",
               last_refusal_, ").");
  unreported_ = 0;
  reported_at_ = now;
}

} // namespace trireme::store
