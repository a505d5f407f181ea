#include <trireme/store/doorkeeper.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/store/sockets.h>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kDoor = 0;
constexpr int kAdmittedAtOnce = 32;
/// A newer connection does not displace one younger than this: thousands that arrive at once would displace each other.
constexpr milliseconds kShortestStay{200};
constexpr milliseconds kBetweenReports{1000};

void watch_door(int events, int listening, bool on) {
  epoll_event interest{.events = on ? EPOLLIN : 0u, .data = {.u64 = kDoor}};
  epoll_ctl(events, EPOLL_CTL_MOD, listening, &interest);
}

} // namespace

Doorkeeper::Doorkeeper(Descriptor listening, DoorkeeperOptions options)
    : options_(std::move(options)), listening_(std::move(listening)), events_(epoll_create1(EPOLL_CLOEXEC)) {
  epoll_event door{.events = EPOLLIN, .data = {.u64 = kDoor}};
  if (!events_ || !set_nonblocking(listening_.get()) ||
      epoll_ctl(events_.get(), EPOLL_CTL_ADD, listening_.get(), &door) != 0) {
    throw Error("store", concat("cannot serve: ", std::strerror(errno), "."),
                "Raise the limit on open files (ulimit -n).");
  }
}

Clock::time_point Doorkeeper::wake() const {
  auto next = Clock::time_point::max();
  if (!strangers_.empty()) {
    next = strangers_.begin()->second.since + options_.patience;
  }
  if (rests_until_ != Clock::time_point::min()) {
    next = std::min(next, rests_until_);
  }
  return unreported_ > 0 ? std::min(next, reported_at_ + kBetweenReports) : next;
}

std::vector<Descriptor> Doorkeeper::serve() {
  std::vector<Descriptor> admitted;
  std::array<epoll_event, 64> happened;
  const int count = epoll_wait(events_.get(), happened.data(), static_cast<int>(happened.size()), 0);
  bool knocked = false;
  for (int place = 0; place < count; ++place) {
    const uint64_t number = happened[static_cast<size_t>(place)].data.u64;
    knocked = knocked || number == kDoor;
    const auto found = strangers_.find(number);
    if (found != strangers_.end() && examine(number, found->second)) {
      epoll_ctl(events_.get(), EPOLL_CTL_DEL, found->second.socket.get(), nullptr);
      admitted.push_back(std::move(found->second.socket));
      strangers_.erase(found);
    }
  }
  const auto now = Clock::now();
  while (!strangers_.empty() && strangers_.begin()->second.since + options_.patience <= now) {
    turn_away(strangers_.begin()->first, "it did not prove in time that it belongs to the job");
  }
  if (rests_until_ != Clock::time_point::min() &&
      (rests_until_ <= now || strangers_.size() < options_.most_strangers)) {
    rests_until_ = Clock::time_point::min();
    watch_door(events_.get(), listening_.get(), true);
    knocked = true;
  }
  if (knocked) { // last, so that existing connections are served first
    accept_some();
  }
  tell_refused();
  return admitted;
}

void Doorkeeper::accept_some() {
  for (int turn = 0; turn < kAdmittedAtOnce; ++turn) {
    if (strangers_.size() >= options_.most_strangers) {
      const auto& [oldest, stranger] = *strangers_.begin();
      if (Clock::now() < stranger.since + kShortestStay) {
        rest(stranger.since + kShortestStay);
        return;
      }
      turn_away(oldest, "it sent nothing while others wait");
    }
    Descriptor socket(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      // Without a free descriptor epoll would report the same connection again and again.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (!strangers_.empty()) {
          turn_away(strangers_.begin()->first, "this process has no file descriptors left");
        }
        rest(Clock::now() + kShortestStay);
      }
      return;
    }
    prepare_connection(socket.get());
    const uint64_t number = next_number_++;
    Stranger stranger;
    stranger.peer = peer_name(socket.get());
    stranger.since = Clock::now();
    stranger.greeting = make_greeting(options_.job);
    epoll_event interest{.events = EPOLLIN | EPOLLRDHUP, .data = {.u64 = number}};
    const ssize_t sent = ::send(socket.get(), stranger.greeting.data(), stranger.greeting.size(),
                                MSG_NOSIGNAL); // the buffer of a new connection has room for it
    if (sent == static_cast<ssize_t>(stranger.greeting.size()) &&
        epoll_ctl(events_.get(), EPOLL_CTL_ADD, socket.get(), &interest) == 0) {
      stranger.socket = std::move(socket);
      strangers_.emplace(number, std::move(stranger));
    }
  }
}

void Doorkeeper::rest(Clock::time_point until) {
  rests_until_ = until;
  watch_door(events_.get(), listening_.get(), false);
}

bool Doorkeeper::examine(uint64_t number, Stranger& stranger) {
  std::array<char, kAnswerBytes> buffer;
  const ssize_t got = ::recv(stranger.socket.get(), buffer.data(), kAnswerBytes - stranger.in.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return false;
  }
  if (got <= 0) {
    if (stranger.in.empty()) {
      strangers_.erase(number); // a port scan
    } else {
      turn_away(number, "it closed the connection during the handshake");
    }
    return false;
  }
  stranger.in.append(buffer.data(), static_cast<size_t>(got));
  if (!may_become_answer(stranger.in)) {
    turn_away(number, "it speaks another protocol");
    return false;
  }
  if (stranger.in.size() < kAnswerBytes) {
    return false;
  }
  Answer answer;
  std::copy(stranger.in.begin(), stranger.in.end(), answer.begin());
  const bool known = verify_answer(options_.secret, stranger.greeting, answer);
  std::string verdict(1, known ? kAccepted : kRefused);
  if (known) {
    const Proof proof = make_proof(options_.secret, stranger.greeting, answer);
    verdict.append(proof.data(), proof.size());
  }
  const bool told = ::send(stranger.socket.get(), verdict.data(), verdict.size(), MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(verdict.size());
  if (!known) {
    turn_away(number, "it has another secret");
  } else if (!told) {
    strangers_.erase(number);
  }
  return known && told;
}

void Doorkeeper::turn_away(uint64_t number, const std::string& why) {
  ++refused_;
  ++unreported_;
  last_refusal_ = concat(strangers_.at(number).peer, ": ", why);
  strangers_.erase(number);
}

void Doorkeeper::tell_refused() {
  const auto now = Clock::now();
  if (unreported_ > 0 && now >= reported_at_ + kBetweenReports) {
    log::warning(options_.who, " has refused ", unreported_, unreported_ == 1 ? " connection" : " connections",
                 " that did not prove to belong to this job (last ", last_refusal_, ").");
    unreported_ = 0;
    reported_at_ = now;
  }
}

} // namespace trireme::store
