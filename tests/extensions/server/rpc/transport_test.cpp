// What holds for every transport.
#include "tests/extensions/server/rpc/transport.h"

#include <trireme/base/error.h>

namespace trireme::rpc::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Transports, TransportTest, testing::ValuesIn(transports()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TransportTest, BodiesOfAllLengths) {
  const auto serving = make_serving();
  const auto client = connect(serving->address, access_, soon());
  int64_t sent = 0;
  int64_t received = 0;
  for (const size_t body_size : {0, 1, 55, 4096, 16 << 10, (1 << 20) + 1, 24 << 20}) {
    for (const size_t room_size : {size_t{0}, size_t{1}, body_size}) {
      auto body = bytes(body_size);
      auto room = bytes(room_size);
      body.fill(static_cast<unsigned>(body_size));
      EXPECT_EQ(client->call("hello", body.span, room.span)->wait(soon()), "re: hello");
      EXPECT_TRUE(is_answer(body.span, room.span)) << body_size << " to " << room_size;
      sent += static_cast<int64_t>(body_size);
      received += static_cast<int64_t>(room_size);
    }
  }
  EXPECT_EQ(client->bytes_sent(), sent);
  EXPECT_EQ(client->bytes_received(), received);
}

// What the server does not use of a room neither travels nor changes.
TEST_P(TransportTest, ABodyMayBeShorterThanItsRoom) {
  constexpr size_t kRoom = (1 << 20) + 3;
  const auto serving = make_serving([](Server& server, const Event& event) {
    if (event.kind == Event::Kind::request) {
      const size_t length = std::stoul(event.header);
      answer_into(event.body, event.room.first(std::min(length, event.room.size())));
      server.reply(event.id, "short", length);
    }
  });
  const auto client = connect(serving->address, access_, soon());
  auto body = bytes(100);
  body.fill(3);
  int64_t received = 0;
  for (const size_t length : {size_t{0}, size_t{1}, size_t{70'000}, kRoom, kRoom + 1}) {
    auto room = bytes(kRoom);
    std::fill(room.span.begin(), room.span.end(), std::byte{0xee});
    EXPECT_EQ(client->call(std::to_string(length), body.span, room.span)->wait(soon()), "short");
    const size_t used = std::min(length, kRoom);
    EXPECT_TRUE(is_answer(body.span, room.span.first(used))) << length;
    EXPECT_TRUE(std::all_of(room.span.begin() + static_cast<int64_t>(used), room.span.end(), [](std::byte byte) {
      return byte == std::byte{0xee};
    })) << length;
    received += static_cast<int64_t>(used);
    EXPECT_EQ(client->bytes_received(), received);
  }
}

TEST_P(TransportTest, LongHeaders) {
  const auto serving = make_serving();
  const auto client = connect(serving->address, access_, soon());
  for (const size_t length : {0, 1, 70'000, 5'000'000}) {
    const std::string header(length, 'h');
    EXPECT_EQ(client->call(header)->wait(soon()), "re: " + header);
  }
}

TEST_P(TransportTest, AThousandRequestsAnsweredInAnotherOrder) {
  constexpr int kRequests = 1000;
  std::vector<Event> held;
  const auto serving = make_serving([&](Server& server, const Event& event) {
    if (event.kind == Event::Kind::request) {
      held.push_back(event);
    }
    if (held.size() == kRequests) {
      for (auto one = held.rbegin(); one != held.rend(); ++one) {
        Serving::answer(server, *one);
      }
    }
  });
  const auto client = connect(serving->address, access_, soon());
  std::vector<std::unique_ptr<Bytes>> bodies;
  std::vector<std::unique_ptr<Bytes>> rooms;
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < kRequests; ++i) {
    bodies.push_back(std::make_unique<Bytes>(static_cast<size_t>(i) * 17 % 20'000, GetParam().shared));
    rooms.push_back(std::make_unique<Bytes>(static_cast<size_t>(i) * 13 % 20'000, GetParam().shared));
    bodies.back()->fill(static_cast<unsigned>(i));
    calls.push_back(client->call(std::to_string(i), bodies.back()->span, rooms.back()->span));
  }
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_EQ(calls[i]->wait(soon()), "re: " + std::to_string(i));
    EXPECT_TRUE(calls[i]->done());
    EXPECT_TRUE(is_answer(bodies[i]->span, rooms[i]->span)) << i;
  }
}

TEST_P(TransportTest, ManyClients) {
  const auto serving = make_serving();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int number = 0; number < 32; ++number) {
    threads.emplace_back([&, number] {
      const auto client = connect(serving->address, access_, soon());
      for (int turn = 0; turn < 20; ++turn) {
        auto body = bytes(3000);
        auto room = bytes(3000);
        body.fill(static_cast<unsigned>(number * 100 + turn));
        const std::string header = std::to_string(number) + "/" + std::to_string(turn);
        wrong += client->call(header, body.span, room.span)->wait(soon()) != "re: " + header ||
                 !is_answer(body.span, room.span);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST_P(TransportTest, RequestsOfOneWhoLeftComeBeforeItsEnd) {
  const auto server = make_server();
  std::thread other([&] {
    const auto client = connect(server->address(), access_, soon());
    auto body = bytes(5000);
    body.fill(1);
    std::vector<std::shared_ptr<Call>> calls;
    for (const char* header : {"one", "two", "answered"}) {
      calls.push_back(client->call(header, body.span));
    }
    EXPECT_EQ(calls.back()->wait(soon()), "now go");
  });
  std::vector<Event> events;
  while (events.empty() || events.back().kind != Event::Kind::gone) {
    if (auto event = server->next(milliseconds(100))) {
      events.push_back(std::move(*event));
      if (events.back().header == "answered") {
        server->reply(events.back().id, "now go");
      }
    }
    ASSERT_LE(events.size(), 4u);
  }
  other.join();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].header, "one");
  EXPECT_EQ(events[1].header, "two");
  EXPECT_EQ(events[3].client, events[0].client);
  server->reply(events[0].id, "too late"); // nothing happens
  server->reply(events[0].id, "and again");
  server->reply(12345, "nobody asked");
  EXPECT_FALSE(server->next(milliseconds(1)));
}

TEST_P(TransportTest, ADeadlineBreaksTheConnection) {
  const auto server = make_server();
  std::atomic<bool> stop{false};
  std::thread silent([&] {
    while (!stop) {
      server->next(milliseconds(10));
    }
  });
  {
    const auto client = connect(server->address(), access_, soon());
    auto room = bytes(100);
    const auto call = client->call("x", {}, room.span);
    EXPECT_FALSE(call->done());
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_THROW(call->wait(Clock::now() + milliseconds(20)), PeerError);
    }
    EXPECT_THROW(client->call("y")->wait(soon()), PeerError) << "a broken one stays broken";
  }
  stop = true;
  silent.join();
}

TEST_P(TransportTest, AWaitThatEndsBreaksNothing) {
  std::optional<Event> held;
  const auto serving = make_serving([&](Server& server, const Event& event) {
    if (event.kind == Event::Kind::request) {
      if (event.header == "hold") {
        held = event;
      } else {
        Serving::answer(server, event);
        Serving::answer(server, *held);
      }
    }
  });
  const auto client = connect(serving->address, access_, soon());
  auto room = bytes(100);
  const auto call = client->call("hold", {}, room.span);
  EXPECT_FALSE(call->wait_until(Clock::now() + milliseconds(20)));
  EXPECT_FALSE(call->done());
  EXPECT_EQ(client->call("now")->wait(soon()), "re: now");
  EXPECT_TRUE(call->wait_until(soon()));
  EXPECT_EQ(call->wait(soon()), "re: hold");
  EXPECT_TRUE(is_answer({}, room.span));
}

TEST_P(TransportTest, AnEndedServerIsNoticed) {
  auto serving = make_serving([](Server&, const Event&) {});
  const auto client = connect(serving->address, access_, soon());
  auto room = bytes(100);
  const auto call = client->call("x", {}, room.span);
  serving.reset();
  EXPECT_TRUE(call->wait_until(soon()));
  EXPECT_TRUE(call->done()) << "there is nothing to wait for";
  EXPECT_THROW(call->wait(soon()), PeerError);
  EXPECT_THROW(call->wait(soon()), PeerError);
}

TEST_P(TransportTest, ACallOutlivesItsClient) {
  const auto serving = make_serving([](Server&, const Event&) {});
  auto client = connect(serving->address, access_, soon());
  auto room = bytes(100);
  const auto call = client->call("x", {}, room.span);
  client.reset();
  EXPECT_THROW(call->wait(soon()), PeerError);
}

TEST_P(TransportTest, WithoutTheSecretNobodyComesIn) {
  const auto serving = make_serving();
  Access other = access_;
  other.secret.front() = 'x';
  EXPECT_THROW(connect(serving->address, other, soon()), InputError);
  other = access_;
  other.job = "another";
  EXPECT_THROW(connect(serving->address, other, soon()), InputError);
}

TEST_P(TransportTest, OneWhoDoesNotReadHoldsNobodyUp) {
  const auto serving = make_serving();
  const auto lazy = connect(serving->address, access_, soon());
  std::vector<std::byte> room(size_t{24} << 20); // not in the arena: the reply travels
  const auto big = lazy->call("big", {}, room);
  const auto client = connect(serving->address, access_, soon());
  for (int turn = 0; turn < 100; ++turn) {
    EXPECT_EQ(client->call("small")->wait(soon()), "re: small");
  }
  EXPECT_EQ(big->wait(soon()), "re: big");
  EXPECT_TRUE(is_answer({}, room));
}

TEST(Addresses, WhatIsNone) {
  for (const char* address : {"", "tcp://", "tcp://host", "tcp://:1", "tcp://host:x", "tcp://host:70000", "tcp://::1:4",
                              "ftp://host:1", "fd://x", "fd://99999"}) {
    EXPECT_THROW(serve(address, {}), InputError) << address;
  }
  EXPECT_THROW(connect("host:1", {}, soon()), InputError);
  EXPECT_THROW(serve("tcp://0.0.0.0:0", Access{std::string(32, 's'), ""}), InputError) << "all networks";
}

} // namespace
} // namespace trireme::rpc::test
