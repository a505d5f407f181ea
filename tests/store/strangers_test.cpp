#include <trireme/base/env.h>
#include <trireme/store/client.h>
#include <trireme/store/handshake.h>
#include <trireme/store/messages.h>
#include <trireme/store/server.h>

#include "tests/store/raw_connection.h"

#include <gmock/gmock.h>

#include <random>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Door;
using test::eventually;
using test::RawConnection;

/// A store with a client of the job, which must not notice anything.
class StrangersTest : public testing::Test {
 protected:
  explicit StrangersTest(milliseconds patience = seconds(60)) : patience_(patience) {}
  void TearDown() override {
    EXPECT_EQ(member_->find("kept"), "value");
    EXPECT_EQ(server_.connections(), 1) << "no stranger has come in";
    EXPECT_TRUE(Client::connect(door_.endpoint, secret_, "", Client::Clock::now() + seconds(20))->has_all({"kept"}))
        << "the door still works";
  }
  Greeting greeting_of(RawConnection& connection) const {
    Greeting greeting{};
    const std::string greeting_bytes = connection.receive(kGreetingBytes);
    std::copy(greeting_bytes.begin(), greeting_bytes.end(), greeting.begin());
    return greeting;
  }
  static std::string text(const Answer& answer) { return {answer.data(), answer.size()}; }

  /// Far longer than a member takes to prove itself on a busy machine.
  const milliseconds patience_;
  const Secret secret_ = Secret::random();
  const Door door_;
  Server server_{door_.listening, {.secret = secret_, .stranger_patience = patience_, .most_strangers = 8}};
  std::shared_ptr<Client> member_ = [this] {
    auto client = Client::connect(door_.endpoint, secret_, "", Client::Clock::now() + seconds(20));
    client->set("kept", "value");
    return client;
  }();
};

TEST_F(StrangersTest, WrongKey) {
  RawConnection stranger(door_.endpoint);
  stranger.send(text(make_answer(Secret::random(), greeting_of(stranger))));
  EXPECT_EQ(stranger.receive(10), "R") << "and nothing more";
  EXPECT_TRUE(stranger.closed());
  EXPECT_EQ(server_.refused(), 1);
}

TEST_F(StrangersTest, ReplayedAnswer) {
  std::string good;
  {
    RawConnection first(door_.endpoint);
    good = text(make_answer(secret_, greeting_of(first)));
    first.send(good);
    EXPECT_EQ(first.receive(1), "A");
  }
  RawConnection second(door_.endpoint);
  greeting_of(second);
  second.send(good);
  EXPECT_EQ(second.receive(10), "R");
  EXPECT_TRUE(eventually([&] { return server_.connections() == 1; }));
}

TEST_F(StrangersTest, ReflectedGreeting) {
  RawConnection stranger(door_.endpoint);
  const Greeting greeting = greeting_of(stranger);
  std::string reflected(greeting.data(), greeting.size());
  reflected.resize(kAnswerBytes, 'x');
  stranger.send(reflected);
  EXPECT_EQ(stranger.receive(10), "R");
}

TEST_F(StrangersTest, ProofHeardOnAnotherConnection) {
  // The man in the middle opens two connections and passes on what one says to the other.
  RawConnection one(door_.endpoint);
  RawConnection two(door_.endpoint);
  const Greeting greeting = greeting_of(one);
  greeting_of(two);
  two.send(text(make_answer(secret_, greeting)));
  EXPECT_EQ(two.receive(10), "R");
}

class ImpatientStoreTest : public StrangersTest {
 protected:
  ImpatientStoreTest() : StrangersTest(seconds(2)) {}
};

TEST_F(ImpatientStoreTest, TruncatedAnswerAndSlowBytes) {
  RawConnection silent(door_.endpoint);
  RawConnection slow(door_.endpoint);
  RawConnection leaving(door_.endpoint);
  const std::string answer = text(make_answer(secret_, greeting_of(slow)));
  {
    RawConnection(door_.endpoint).send(answer.substr(0, 30));
  }
  for (int place = 0; place < 30; ++place) {
    slow.send(answer.substr(place, 1));
    usleep(100'000);
  }
  EXPECT_TRUE(slow.closed()) << "a byte now and then is not enough";
  EXPECT_TRUE(silent.closed());
  EXPECT_GE(server_.refused(), 4);
}

TEST_F(StrangersTest, TheFirstWrongByteEndsIt) {
  RawConnection stranger(door_.endpoint);
  stranger.send("GET / HTTP/1.1\r\n");
  const auto start = Client::Clock::now();
  EXPECT_TRUE(stranger.closed());
  EXPECT_LT(Client::Clock::now() - start, seconds(5));
}

TEST_F(StrangersTest, ManyWhoSayNothingKeepNobodyOut) {
  std::vector<std::unique_ptr<RawConnection>> crowd;
  for (int place = 0; place < 50; ++place) {
    crowd.push_back(std::make_unique<RawConnection>(door_.endpoint));
  }
  Client::connect(door_.endpoint, secret_, "", Client::Clock::now() + seconds(30));
  EXPECT_GT(server_.refused(), 0);
  EXPECT_TRUE(eventually([&] { return server_.connections() == 1; }));
}

TEST_F(StrangersTest, MessagesOfAMemberThatAreNone) {
  for (const std::string& message :
       {std::string("\xff\xff\xff\xff", 4), std::string("\0\0\0\0", 4), std::string("\1\0\0\0\x63", 5),
        std::string("\x05\0\0\0\1\xff\xff\xff\xff", 9), std::string("\x05\0\0\0\4\xff\xff\xff\xff", 9)}) {
    RawConnection stranger(door_.endpoint);
    stranger.send(text(make_answer(secret_, greeting_of(stranger))));
    EXPECT_EQ(stranger.receive(1 + kProofBytes).substr(0, 1), "A");
    stranger.send(message);
    EXPECT_TRUE(stranger.closed());
  }
  EXPECT_EQ(server_.refused(), 5);
  EXPECT_TRUE(eventually([&] { return server_.connections() == 1; }));
}

TEST_F(StrangersTest, RequestsInOneBreathAreAnsweredInOrder) {
  RawConnection eager(door_.endpoint);
  eager.send(text(make_answer(secret_, greeting_of(eager))));
  eager.receive(1 + kProofBytes);
  std::string requests;
  for (int turn = 0; turn < 500; ++turn) {
    requests += MessageWriter(Op::add).add(std::string_view("n")).add(int64_t{1}).finish();
    requests += MessageWriter(Op::wait).add(std::vector<std::string>{"n", "never"}).add(int64_t{0}).finish();
  }
  eager.send(requests);
  for (int turn = 1; turn <= 500; ++turn) {
    EXPECT_EQ(MessageReader(eager.receive(13).substr(5)).number(), turn);
    EXPECT_EQ(eager.receive(6).substr(5), std::string(1, '\0'));
  }
}

TEST_F(StrangersTest, RandomBytes) {
  std::mt19937 random(2);
  const int connections = env::flag("TRIREME_LONG_TESTS") ? 100'000 : 2'000;
  for (int turn = 0; turn < connections; ++turn) {
    std::string bytes(random() % 100, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    if (turn % 3 == 0) {
      bytes.insert(0, "TRIREME\1");
    }
    RawConnection stranger(door_.endpoint);
    stranger.send(bytes);
    if (turn % 10 != 0) {
      stranger.break_off();
    }
    if (turn % 100 == 0) {
      ASSERT_EQ(member_->add("counted", 1), turn / 100 + 1);
    }
  }
}

} // namespace
} // namespace trireme::store
