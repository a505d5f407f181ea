#include <trireme/store/client.h>
#include <trireme/store/handshake.h>
#include <trireme/store/server.h>

#include "tests/store/raw_connection.h"

#include <tests/support/peer_error.h>

#include <gmock/gmock.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Door;
using test::eventually;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using trireme::test::error_of;

Client::Clock::time_point soon(milliseconds time = seconds(20)) {
  return Client::Clock::now() + time;
}

class ClientTest : public testing::Test {
 protected:
  std::shared_ptr<Client> connect() const { return Client::connect(door_.endpoint, secret_, "job", soon()); }
  /// The error of a connection that should fail.
  ConnectError refusal(const Secret& secret, const std::string& job, milliseconds patience = seconds(20)) const {
    try {
      Client::connect(door_.endpoint, secret, job, soon(patience));
    } catch (const ConnectError& error) {
      return error;
    }
    throw Error("test", "it has connected.");
  }

  const Secret secret_ = Secret::random();
  const Door door_;
  std::unique_ptr<Server> server_ =
      std::make_unique<Server>(door_.listening, ServerOptions{.secret = secret_, .job = "job"});
};

TEST_F(ClientTest, KeysAndValues) {
  const auto client = connect();
  const auto other = connect();
  const std::string binary("\0\1\xff", 3);
  client->set("a", binary);
  EXPECT_EQ(other->find("a"), binary);
  EXPECT_EQ(other->find("b"), std::nullopt);
  EXPECT_THAT(other->find_all({"b", "a", ""}), ElementsAre(std::nullopt, binary, std::nullopt));
  EXPECT_EQ(client->add("n", 3), 3);
  EXPECT_EQ(other->add("n", 4), 7);
  EXPECT_EQ(client->find("n"), "7");
  client->append("a", "more");
  EXPECT_EQ(other->find("a"), binary + "more");
  EXPECT_EQ(client->compare_set("c", "", "1"), "1");
  EXPECT_EQ(other->compare_set("c", "2", "3"), "1");
  EXPECT_EQ(client->count(), 3);
  EXPECT_TRUE(client->has_all({"a", "c"}));
  EXPECT_FALSE(client->has_all({"a", "d"}));
  EXPECT_TRUE(client->remove("a"));
  EXPECT_FALSE(client->remove("a"));
  EXPECT_EQ(server_->connections(), 2);
}

TEST_F(ClientTest, ARefusedRequestLeavesTheConnectionUsable) {
  const auto client = connect();
  client->set("n", "text");
  EXPECT_THROW(client->add("n", 1), Error);
  EXPECT_THROW(client->set("big", std::string(17 << 20, 'x')), Error);
  client->set("long", std::string(7 << 20, 'x'));
  client->set("too", std::string(7 << 20, 'x'));
  EXPECT_THROW(client->find_all({"long", "too"}), Error);
  EXPECT_THROW(client->append("long", std::string(7 << 20, 'x')), Error);
  EXPECT_EQ(client->find("long")->size(), 7u << 20);
  EXPECT_EQ(client->find("n"), "text");
}

TEST_F(ClientTest, WaitsUntilAllKeysAreThere) {
  const auto client = connect();
  const auto other = connect();
  EXPECT_FALSE(client->wait({"x"}, milliseconds(20)));
  EXPECT_TRUE(client->wait({}, milliseconds(0)));
  std::thread setter([&] {
    other->set("x", "1");
    std::this_thread::sleep_for(milliseconds(30));
    other->set("y", "1");
  });
  EXPECT_TRUE(client->wait({"x", "y"}, seconds(20)));
  setter.join();
  EXPECT_FALSE(client->wait({"z"}, milliseconds(0)));
}

TEST_F(ClientTest, ThreadsShareAConnection) {
  const auto client = connect();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 200; ++turn) {
        client->add("n", 1);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(client->find("n"), "800");
}

TEST_F(ClientTest, ThousandsOfWaitersOnManyConnections) {
  std::vector<std::shared_ptr<Client>> clients;
  std::vector<std::thread> threads;
  std::vector<std::string> keys;
  std::atomic<int> woken{0};
  for (int place = 0; place < 64; ++place) {
    clients.push_back(connect());
    keys.push_back("rank/" + std::to_string(place));
  }
  for (int place = 0; place < 64; ++place) {
    threads.emplace_back([&, place] {
      clients[place]->set(keys[place], "here");
      woken += clients[place]->wait(keys, seconds(20)) ? 1 : 0;
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(woken, 64);
}

TEST_F(ClientTest, ALastWillIsDoneHoweverTheConnectionEnds) {
  const auto client = connect();
  connect()->last_will("gone/1", "its connection has closed", "deaths");
  EXPECT_TRUE(client->wait({"gone/1"}, seconds(20)));
  EXPECT_EQ(client->find("gone/1"), "its connection has closed");
  EXPECT_EQ(client->find("deaths"), "1");

  auto polite = connect();
  polite->last_will("gone/2", "");
  polite->last_will("", "");
  polite.reset();
  EXPECT_TRUE(eventually([&] { return server_->connections() == 1; }));
  EXPECT_EQ(client->find("gone/2"), std::nullopt) << "taken back";

  const pid_t child = fork();
  if (child == 0) {
    connect()->last_will("gone/3", "");
    const auto waiting = connect();
    waiting->last_will("gone/4", "");
    waiting->set("willed", "");
    waiting->wait({"never"}, seconds(60));
    _exit(0);
  }
  EXPECT_TRUE(client->wait({"gone/3"}, seconds(20)));
  EXPECT_TRUE(client->wait({"willed"}, seconds(20)));
  std::this_thread::sleep_for(milliseconds(20)); // until it waits; before that its will is done all the same
  kill(child, SIGKILL);
  EXPECT_TRUE(client->wait({"gone/4"}, seconds(20))) << "also in the middle of a wait";
  waitpid(child, nullptr, 0);
}

TEST_F(ClientTest, ANumberComesWithALastWill) {
  const auto client = connect();
  EXPECT_EQ(client->take_number("ids", "gone/", "yes", "deaths"), 1);
  auto other = connect();
  EXPECT_EQ(other->take_number("ids", "gone/", "yes", "deaths"), 2);
  EXPECT_EQ(other->take_number("ids", "gone/", "yes", "deaths"), 3) << "the last will counts";
  other.reset();
  EXPECT_TRUE(client->wait({"gone/3"}, seconds(20)));
  EXPECT_EQ(client->find("gone/2"), std::nullopt);
  EXPECT_EQ(client->find("deaths"), "1");
  client->set("word", "no number");
  EXPECT_THAT(error_of([&] { client->take_number("word", "gone/", "yes"); }), HasSubstr("is not a number"));
}

TEST_F(ClientTest, TheEndOfTheServerIsAnErrorAtOnce) {
  const auto client = connect();
  const auto waiting = connect();
  std::thread ender([&] {
    std::this_thread::sleep_for(milliseconds(50));
    server_.reset();
  });
  EXPECT_THROW(waiting->wait({"never"}, seconds(20)), LostError);
  ender.join();
  EXPECT_THROW(client->set("a", "b"), LostError);
  EXPECT_THROW(client->find("a"), LostError) << "and so it stays";
}

TEST(StoppedServerTest, ACallTakesNoLongerThanItsClientAllows) {
  const Secret secret = Secret::random();
  const Door door;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Server server(door.listening, ServerOptions{.secret = secret, .job = "job"});
    for (;;) {
      pause();
    }
  }
  const auto client = Client::connect(door.endpoint, secret, "job", soon(), milliseconds(1));
  const auto patient = Client::connect(door.endpoint, secret, "job", soon(), seconds(60));
  client->set("a", "b");
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  EXPECT_THROW(client->find("a"), LostError);
  std::thread later([&] { kill(child, SIGCONT); });
  EXPECT_EQ(patient->find("a"), "b") << "its answer came in time";
  later.join();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(ClientTest, SaysThatTheSecretIsWrong) {
  for (const Secret& wrong : {Secret::random(), Secret()}) {
    const auto error = refusal(wrong, "job");
    EXPECT_EQ(error.reason, ConnectError::Reason::wrong_secret);
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the secret is wrong"), HasSubstr(std::to_string(door_.endpoint.port)),
                                    HasSubstr("TRIREME_SECRET_FILE")));
  }
  EXPECT_EQ(server_->refused(), 2);
  connect();
}

TEST_F(ClientTest, SaysThatAnotherJobMeetsThere) {
  const auto error = refusal(secret_, "other");
  EXPECT_EQ(error.reason, ConnectError::Reason::other_job);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("another job uses the rendezvous"), HasSubstr("(this is job \"other\")"),
                                  HasSubstr("MASTER_PORT")));
}

TEST_F(ClientTest, SaysThatNobodyListens) {
  server_.reset();
  const auto error = refusal(secret_, "job", milliseconds(100));
  EXPECT_EQ(error.reason, ConnectError::Reason::nobody);
  EXPECT_THAT(error.what(), HasSubstr("nobody listens on 127.0.0.1:"));
  try {
    Client::connect({"no-such-host.invalid", 1}, secret_, "", soon(milliseconds(50)));
    FAIL();
  } catch (const ConnectError& unknown) {
    EXPECT_THAT(unknown.what(), HasSubstr("the host name no-such-host.invalid is unknown"));
  }
}

TEST_F(ClientTest, WaitsForAServerThatComesLater) {
  server_.reset();
  std::thread starter([&] {
    std::this_thread::sleep_for(milliseconds(100));
    server_ = std::make_unique<Server>(listen_on(door_.endpoint), ServerOptions{.secret = secret_, .job = "job"});
  });
  connect()->set("a", "b");
  starter.join();
}

TEST_F(ClientTest, SaysThatTheServerIsNotOurs) {
  const auto try_against = [&](const std::string& greeting, milliseconds patience = seconds(20)) {
    const Door door;
    std::thread stranger([&, listening = Descriptor(door.listening)] {
      const Descriptor socket(::accept(listening.get(), nullptr, nullptr));
      [[maybe_unused]] const ssize_t sent = ::send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      char byte = 0;
      while (::recv(socket.get(), &byte, 1, 0) == 1) { // until the client gives up
      }
    });
    std::string happened = "connected";
    try {
      Client::connect(door.endpoint, secret_, "job", soon(patience));
    } catch (const ConnectError& error) {
      happened = error.happened;
    }
    stranger.join();
    return happened;
  };
  EXPECT_THAT(try_against("SSH-2.0-OpenSSH_9.2\r\n"),
              HasSubstr("is not the rendezvous of this job (it speaks another protocol)"));
  EXPECT_THAT(try_against("Trillian says hello, and a good deal more than forty-eight bytes"),
              HasSubstr("it speaks another protocol"));
  EXPECT_THAT(try_against("", milliseconds(500)), HasSubstr("it does not answer"));
  EXPECT_THAT(try_against("TRIREME\1", milliseconds(500)), HasSubstr("it does not answer"));
  EXPECT_THAT(try_against("TRIREME\2........................................"),
              HasSubstr("another version of Trireme"));
  const Greeting own = make_greeting("job");
  EXPECT_THAT(try_against(std::string(own.data(), own.size()) + "A" + std::string(kProofBytes, 'x')),
              HasSubstr("the listener does not know this rank's secret"));
}

} // namespace
} // namespace trireme::store
