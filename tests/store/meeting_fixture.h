#pragma once

#include <trireme/base/error.h>
#include <trireme/store/meeting.h>
#include <trireme/store/server.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace trireme::store {

/// A round as a value that can be compared.
struct Place {
  Place(int64_t number, int rank, int size) : number(number), rank(rank), size(size) {}
  Place(const Round& round) : number(round.number), rank(round.rank), size(round.size) {}
  friend bool operator==(const Place&, const Place&) = default;
  int64_t number;
  int rank;
  int size;
};

/// The store of a job, and its processes: the end of one's connection is what its death would be.
class MeetingTest : public testing::Test {
 protected:
  MeetingTest() {
    const int listening = store::listen_on({"127.0.0.1", 0});
    options_.store = {"127.0.0.1", store::bound_port(listening)};
    options_.secret = store::Secret::random();
    options_.patience = std::chrono::seconds(30);
    server_ = std::make_unique<store::Server>(listening, store::ServerOptions{.secret = options_.secret});
  }

  std::shared_ptr<store::Client> connect() {
    return store::Client::connect(options_.store, options_.secret, "",
                                  std::chrono::steady_clock::now() + std::chrono::seconds(30));
  }
  Meeting& come() {
    meetings_.push_back(std::make_unique<Meeting>(options_, connect()));
    return *meetings_.back();
  }
  /// Returns when the store knows that it has come.
  std::future<Round> next(Meeting& meeting) {
    const auto before = probe();
    auto future = std::async(std::launch::async, [&meeting] { return meeting.next_round(); });
    while (probe() == before && future.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    }
    return future;
  }
  /// Of several at once; the first in the list comes first, so that its number is lower.
  std::vector<Round> next(const std::vector<Meeting*>& meetings) {
    std::vector<std::future<Round>> futures;
    for (Meeting* const meeting : meetings) {
      futures.push_back(next(*meeting));
    }
    std::vector<Round> rounds;
    for (auto& future : futures) {
      rounds.push_back(future.get());
    }
    return rounds;
  }
  void leave(Meeting& meeting) {
    std::erase_if(meetings_, [&](const auto& one) { return one.get() == &meeting; });
  }
  /// Counts who has entered or come.
  std::string probe() {
    const auto client = connect();
    std::string all;
    for (int id = 1; id < 12; ++id) {
      all += client->find(concat("elastic/come/", id)).value_or("-") + " ";
    }
    return all;
  }
  MeetingOptions options_;
  std::unique_ptr<store::Server> server_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
};

} // namespace trireme::store
