#include <trireme/store/client.h>

#include <trireme/base/units.h>
#include <trireme/store/handshake.h>
#include <trireme/store/messages.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace trireme::store {
namespace {

using Clock = Client::Clock;
using std::chrono::milliseconds;
using Reason = ConnectError::Reason;

constexpr milliseconds kFirstRetry{2};
constexpr milliseconds kLongestRetry{50};
constexpr milliseconds kConnectPatience{3000};
/// For an answer on its way: that to wait() comes after the time which the server was asked to wait.
constexpr milliseconds kAnswer{2000};
constexpr milliseconds kLongestCall{std::chrono::hours(24 * 365)};

enum class Transfer { done, late, ended };

/// Waits until the socket is readable or writable.
bool ready(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{socket, events, 0};
    const int count = ::poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
    if (count > 0) {
      return true;
    }
    if (Clock::now() >= deadline) {
      return false;
    }
  }
}

Transfer send_all(int socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      if (!ready(socket, POLLOUT, deadline)) {
        return Transfer::late;
      }
    } else if (errno != EINTR) {
      return Transfer::ended;
    }
  }
  return Transfer::done;
}

Transfer receive_all(int socket, char* buffer, size_t bytes, Clock::time_point deadline) {
  size_t filled = 0;
  while (filled < bytes) {
    const ssize_t count = ::recv(socket, buffer + filled, bytes - filled, 0);
    if (count > 0) {
      filled += static_cast<size_t>(count);
    } else if (count < 0 && errno == EAGAIN) {
      if (!ready(socket, POLLIN, deadline)) {
        return Transfer::late;
      }
    } else if (count == 0 || errno != EINTR) {
      return Transfer::ended;
    }
  }
  return Transfer::done;
}

std::string at(const Endpoint& endpoint) {
  return concat(endpoint.host, ":", endpoint.port);
}

ConnectError not_a_store(const Endpoint& endpoint, const std::string& why) {
  return {Reason::not_a_store, concat("what listens on ", at(endpoint), " is not the meeting point of this job (", why, ")."),
          "Another program may use this port: choose another MASTER_PORT. Or rank 0 has just ended: look at its output."};
}

ConnectError wrong_secret(const Endpoint& endpoint, const std::string& who) {
  return {Reason::wrong_secret, concat("the secret is wrong: ", who, " at the meeting point ", at(endpoint), "."),
          "Start all ranks of a job with the same secret: trireme launch makes one, otherwise TRIREME_SECRET_FILE names the file, the same for every rank. If "
          "another job meets there, choose another MASTER_PORT."};
}

/// Complains when the greeting is not one of this job's store.
void check_greeting(const Greeting& greeting, const Endpoint& endpoint, const std::string& job) {
  switch (judge_greeting(greeting, job)) {
    case GreetingKind::of_this_job:
      return;
    case GreetingKind::foreign:
      throw not_a_store(endpoint, "it speaks another protocol");
    case GreetingKind::of_another_version:
      throw ConnectError(Reason::other_version, concat("the meeting point ", at(endpoint), " is run by another version of Trireme."),
                         "Start all ranks from the same build.");
    case GreetingKind::of_another_job:
      throw ConnectError(Reason::other_job, concat("the ranks of another job meet on ", at(endpoint), job.empty() ? "" : concat(" (this is job \"", job, "\")"), "."),
                         "Choose another MASTER_PORT, or wait until the other job has ended.");
  }
}

/// Proves both sides to each other. `ended` and `late`: the server has gone or is silent; try again.
Transfer shake_hands(int socket, const Endpoint& endpoint, const SecretSource& source, const std::string& job, Clock::time_point deadline) {
  Greeting greeting;
  // The first byte already shows another protocol, whose greeting may be shorter.
  Transfer got = receive_all(socket, greeting.data(), 1, deadline);
  if (got == Transfer::done && greeting[0] != 'T') {
    throw not_a_store(endpoint, "it speaks another protocol");
  }
  if (got == Transfer::done) {
    got = receive_all(socket, greeting.data() + 1, greeting.size() - 1, deadline);
  }
  if (got != Transfer::done) {
    return got;
  }
  check_greeting(greeting, endpoint, job);
  const Secret secret = source(socket);
  const Answer answer = make_answer(secret, greeting);
  char verdict = 0;
  Proof proof;
  for (const auto& step : {0, 1, 2}) {
    got = step == 0   ? send_all(socket, {answer.data(), answer.size()}, deadline)
          : step == 1 ? receive_all(socket, &verdict, 1, deadline)
                      : receive_all(socket, proof.data(), proof.size(), deadline);
    if (got != Transfer::done) {
      return got;
    }
    if (step == 1 && verdict != kAccepted) {
      throw wrong_secret(endpoint, "rank 0 does not accept that of this rank");
    }
  }
  if (!verify_proof(secret, greeting, answer, proof)) {
    throw wrong_secret(endpoint, "whoever listens does not know that of this rank");
  }
  return Transfer::done;
}

} // namespace

std::shared_ptr<Client> Client::connect(const Endpoint& endpoint, const SecretSource& source, const std::string& job, Clock::time_point deadline,
                                        milliseconds patience) {
  const auto start = Clock::now();
  std::string problem;
  bool listens = false;
  for (auto pause = kFirstRetry;; pause = std::min(pause * 2, kLongestRetry)) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    Attempt attempt = try_to_connect(endpoint, std::clamp(left, milliseconds(1), kConnectPatience));
    if (attempt.socket) {
      const Transfer shaken = shake_hands(attempt.socket.get(), endpoint, source, job, deadline);
      if (shaken == Transfer::done) {
        return std::shared_ptr<Client>(new Client(std::move(attempt.socket), patience));
      }
      listens = true;
      problem = shaken == Transfer::late ? "it does not answer" : "it closes the connection";
    } else {
      listens = false;
      problem = attempt.unknown_host ? concat("the host name ", endpoint.host, " is unknown") : concat("nobody listens on ", at(endpoint));
    }
    if (Clock::now() >= deadline) {
      break;
    }
    std::this_thread::sleep_until(std::min(Clock::now() + pause, deadline));
  }
  if (listens) {
    throw not_a_store(endpoint, problem);
  }
  const auto waited = std::chrono::duration<double>(deadline - start).count();
  throw ConnectError(Reason::nobody, concat(problem, " after ", format_seconds(waited), "."), "Start the process that listens there, or look at its output.");
}

std::string Client::call(const std::string& request, milliseconds busy) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) {
    throw LostError(broken_);
  }
  const milliseconds patience = std::max(patience_, std::clamp(busy, milliseconds(0), kLongestCall) + kAnswer);
  const auto deadline = Clock::now() + patience;
  const auto must = [&](Transfer transfer) {
    if (transfer != Transfer::done) {
      // A late answer would be read as the answer to the next call.
      broken_ = transfer == Transfer::late ? concat("it has not answered for ", format_seconds(static_cast<double>(patience.count()) / 1000))
                                           : "the connection has been closed";
      throw LostError(broken_);
    }
  };
  must(send_all(socket_.get(), request, deadline));
  std::string reply(kLengthBytes, '\0');
  must(receive_all(socket_.get(), reply.data(), reply.size(), deadline));
  try {
    reply.resize(message_length(reply));
  } catch (const BadMessage&) {
    must(Transfer::ended);
  }
  must(receive_all(socket_.get(), reply.data(), reply.size(), deadline));
  MessageReader reader(reply);
  if (static_cast<Status>(reader.byte()) != Status::done) {
    throw Error("store", concat("the store refuses the request: ", reader.text(), "."));
  }
  return reply.substr(1);
}

void Client::set(const std::string& key, std::string_view value) {
  call(MessageWriter(Op::set).add(std::string_view(key)).add(value).finish());
}

std::optional<std::string> Client::find(const std::string& key) {
  return find_all({key}).front();
}

std::vector<std::optional<std::string>> Client::find_all(const std::vector<std::string>& keys) {
  const std::string reply = call(MessageWriter(Op::find).add(keys).finish());
  MessageReader reader(reply);
  std::vector<std::optional<std::string>> values;
  for (size_t place = 0; place < keys.size(); ++place) {
    const bool there = reader.truth();
    const auto value = reader.text();
    values.push_back(there ? std::optional(std::string(value)) : std::nullopt);
  }
  return values;
}

int64_t Client::add(const std::string& key, int64_t delta) {
  return MessageReader(call(MessageWriter(Op::add).add(std::string_view(key)).add(delta).finish())).number();
}

bool Client::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  return MessageReader(call(MessageWriter(Op::wait).add(keys).add(static_cast<int64_t>(timeout.count())).finish(), timeout)).truth();
}

std::string Client::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
  const std::string reply = call(MessageWriter(Op::compare_set).add(std::string_view(key)).add(expected).add(desired).finish());
  return std::string(MessageReader(reply).text());
}

bool Client::remove(const std::string& key) {
  return MessageReader(call(MessageWriter(Op::remove).add(std::string_view(key)).finish())).truth();
}

bool Client::has_all(const std::vector<std::string>& keys) {
  return MessageReader(call(MessageWriter(Op::check).add(keys).finish())).truth();
}

int64_t Client::count() {
  return MessageReader(call(MessageWriter(Op::count).finish())).number();
}

void Client::append(const std::string& key, std::string_view value) {
  call(MessageWriter(Op::append).add(std::string_view(key)).add(value).finish());
}

void Client::last_will(const std::string& key, std::string_view value, const std::string& counter) {
  call(MessageWriter(Op::last_will).add(std::string_view(key)).add(value).add(std::string_view(counter)).finish());
}

} // namespace trireme::store
