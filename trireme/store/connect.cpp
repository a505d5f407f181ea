#include <trireme/store/connect.h>

#include <trireme/base/clock.h>
#include <trireme/base/units.h>
#include <trireme/store/handshake.h>
#include <trireme/store/transfer.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;
using Reason = ConnectError::Reason;

constexpr milliseconds kFirstRetry{2};
constexpr milliseconds kLongestRetry{50};
constexpr milliseconds kConnectPatience{3000};

std::string at(const Endpoint& endpoint) {
  return concat(endpoint.host, ":", endpoint.port);
}

ConnectError not_a_store(const Endpoint& endpoint, const std::string& why) {
  return {Reason::not_a_store,
          concat("the program on ", at(endpoint), " is not the rendezvous of this job (", why, ")."),
          "Another program may use this port: choose another MASTER_PORT. Or rank 0 has just ended: check its output."};
}

ConnectError wrong_secret(const Endpoint& endpoint, const std::string& who) {
  return {Reason::wrong_secret, concat("the secret is wrong: ", who, " at the rendezvous ", at(endpoint), "."),
          "Start all ranks of a job with the same secret: trireme launch makes one, otherwise TRIREME_SECRET_FILE "
          "names the file, the same for every rank. If another job uses this address, choose another "
          "MASTER_PORT."};
}

/// Throws if the greeting is not that of this job's store.
void check_greeting(const Greeting& greeting, const Endpoint& endpoint, const std::string& job) {
  switch (judge_greeting(greeting, job)) {
    case GreetingKind::of_this_job:
      return;
    case GreetingKind::foreign:
      throw not_a_store(endpoint, "it speaks another protocol");
    case GreetingKind::of_another_version:
      throw ConnectError(Reason::other_version,
                         concat("the rendezvous ", at(endpoint), " runs another version of Trireme."),
                         "Start all ranks from the same build.");
    case GreetingKind::of_another_job:
      throw ConnectError(Reason::other_job,
                         concat("another job uses the rendezvous ", at(endpoint),
                                job.empty() ? "" : concat(" (this is job \"", job, "\")"), "."),
                         "Choose another MASTER_PORT, or wait until the other job has ended.");
  }
}

/// Proves both sides to each other. `ended` and `late`: the server has ended or is silent; try again.
Transfer shake_hands(int socket, const Endpoint& endpoint, const SecretSource& source, const std::string& job,
                     Clock::time_point deadline) {
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
      throw wrong_secret(endpoint, "rank 0 rejected this rank's secret");
    }
  }
  if (!verify_proof(secret, greeting, answer, proof)) {
    throw wrong_secret(endpoint, "the listener does not know this rank's secret");
  }
  return Transfer::done;
}

} // namespace

Descriptor connect_and_prove(const Endpoint& endpoint, const SecretSource& source, const std::string& job,
                             Clock::time_point deadline) {
  const auto start = Clock::now();
  std::string problem;
  bool listens = false;
  for (auto pause = kFirstRetry;; pause = std::min(pause * 2, kLongestRetry)) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    Attempt attempt = try_to_connect(endpoint, std::clamp(left, milliseconds(1), kConnectPatience));
    if (attempt.socket) {
      const Transfer shaken = shake_hands(attempt.socket.get(), endpoint, source, job, deadline);
      if (shaken == Transfer::done) {
        return std::move(attempt.socket);
      }
      listens = true;
      problem = shaken == Transfer::late ? "it does not answer" : "it closes the connection";
    } else {
      listens = false;
      problem = attempt.unknown_host ? concat("the host name ", endpoint.host, " is unknown")
                                     : concat("nobody listens on ", at(endpoint));
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
  throw ConnectError(Reason::nobody, concat(problem, " after ", format_seconds(waited), "."),
                     "Start the process that listens there, or check its output.");
}

} // namespace trireme::store
