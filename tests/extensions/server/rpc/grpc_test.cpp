// The transport grpc:// within one process and between processes: what it carries, and what ends well although the
// other side does not.
#include <trireme/base/error.h>
#include <trireme/extensions/server/rpc/rpc.h>
#include <trireme/store/sockets.h>

#include "tests/extensions/server/rpc/grpc_checks.h"
#include "tests/support/free_port.h"
#include "tests/support/peer_error.h"

#include <gmock/gmock.h>

#include <sys/wait.h>

#include <future>
#include <numeric>

namespace trireme::rpc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EchoServer;
using test::error_of;
using test::kAccess;
using test::peer_error;
using test::soon;
using testing::HasSubstr;

std::vector<std::byte> pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525u + 1013904223u;
    made[i] = static_cast<std::byte>(seed >> 24);
  }
  return made;
}

class GrpcTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_not_grpc(); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
};

// The echo answers with the bytes turned round and the header with a mark.
TEST_F(GrpcTest, CarriesBodiesOfAnyLength) {
  EchoServer server("grpc://127.0.0.1:0");
  const auto client = connect(server.address(), kAccess, soon());
  constexpr size_t kMiB = size_t{1} << 20;
  int64_t all = 0;
  for (const size_t bytes : {size_t{0}, size_t{1}, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB + 3, size_t{64} << 10}) {
    const auto body = pattern(bytes, static_cast<unsigned>(bytes));
    std::vector<std::byte> room(bytes);
    EXPECT_EQ(client->call(concat("{\"bytes\": ", bytes, "}"), body, room)->wait(soon()),
              concat("echo {\"bytes\": ", bytes, "}"));
    EXPECT_TRUE(std::equal(body.rbegin(), body.rend(), room.begin())) << bytes;
    all += static_cast<int64_t>(bytes);
  }
  EXPECT_EQ(client->bytes_sent(), all);
  EXPECT_EQ(client->bytes_received(), all);
}

TEST_F(GrpcTest, CarriesLongHeaders) {
  EchoServer server("grpc://127.0.0.1:0");
  const auto client = connect(server.address(), kAccess, soon());
  const std::string header(size_t{9} << 20, 'h'); // more than gRPC's own limit
  EXPECT_EQ(client->call(header)->wait(soon()), "echo " + header);
  EXPECT_EQ(client->call("")->wait(soon()), "echo ");
}

// A server that answers the second request first, and the first one never before the client has asked twice.
TEST_F(GrpcTest, AnswersComeInAnyOrder) {
  const auto server = serve("grpc://127.0.0.1:0", kAccess);
  const auto client = connect(server->address(), kAccess, soon());
  std::vector<std::byte> first_room(3);
  std::vector<std::byte> second_room(size_t{3} << 20);
  const auto first = client->call("first", {}, first_room);
  const auto second = client->call("second", {}, second_room);
  const auto first_event = server->next(seconds(60)).value();
  const auto second_event = server->next(seconds(60)).value();
  EXPECT_EQ(first_event.header, "first");
  EXPECT_EQ(second_event.header, "second");
  EXPECT_EQ(first_event.client, second_event.client);
  EXPECT_EQ(first_event.room.size(), 3u);
  std::fill(second_event.room.begin(), second_event.room.end(), std::byte{2});
  server->reply(second_event.id, "to the second");
  EXPECT_EQ(second->wait(soon()), "to the second");
  EXPECT_TRUE(second->done());
  EXPECT_FALSE(first->done());
  EXPECT_EQ(second_room.back(), std::byte{2});
  std::fill(first_event.room.begin(), first_event.room.end(), std::byte{1});
  server->reply(first_event.id, "to the first");
  EXPECT_EQ(first->wait(soon()), "to the first");
  EXPECT_EQ(first_room, std::vector<std::byte>(3, std::byte{1}));
  EXPECT_FALSE(server->next(milliseconds(0)).has_value());
}

TEST_F(GrpcTest, AThousandRequestsOfManyClients) {
  EchoServer server("grpc://127.0.0.1:0");
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&, worker] {
      const auto client = connect(server.address(), kAccess, soon());
      const auto body = pattern(3000, worker);
      std::vector<std::vector<std::byte>> rooms(1000, std::vector<std::byte>(body.size()));
      std::vector<std::shared_ptr<Call>> calls;
      for (size_t i = 0; i < rooms.size(); ++i) {
        calls.push_back(client->call(std::to_string(i), body, rooms[i]));
      }
      for (size_t i = 0; i < rooms.size(); ++i) {
        ASSERT_EQ(calls[i]->wait(soon()), concat("echo ", i));
        ASSERT_TRUE(std::equal(body.rbegin(), body.rend(), rooms[i].begin()));
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(server.in_order());
}

TEST_F(GrpcTest, AClientThatEndsIsGone) {
  const auto server = serve("grpc://127.0.0.1:0", kAccess);
  auto first = connect(server->address(), kAccess, soon());
  auto second = connect(server->address(), kAccess, soon());
  const auto call = first->call("a");
  const auto request = server->next(seconds(60)).value();
  first = nullptr;
  const auto gone = server->next(seconds(60)).value();
  EXPECT_EQ(gone.kind, Event::Kind::gone);
  EXPECT_EQ(gone.client, request.client);
  server->reply(request.id, "to nobody");
  EXPECT_THAT(peer_error([&] { call->wait(soon()); }), HasSubstr("this client was closed"));
  const auto other = second->call("b");
  const auto next = server->next(seconds(60)).value();
  EXPECT_NE(next.client, gone.client);
  server->reply(next.id, "yes");
  EXPECT_EQ(other->wait(soon()), "yes");
}

TEST_F(GrpcTest, AnAnswerThatDoesNotComeIsAnErrorInTime) {
  const auto server = serve("grpc://127.0.0.1:0", kAccess);
  const auto client = connect(server->address(), kAccess, soon());
  std::vector<std::byte> room(100);
  const auto call = client->call("{}", {}, room);
  EXPECT_EQ(server->next(seconds(60)).value().header, "{}");
  const auto start = Clock::now();
  EXPECT_THAT(peer_error([&] { call->wait(start + milliseconds(300)); }),
              HasSubstr("did not answer request 1 before the deadline"));
  EXPECT_GE(Clock::now() - start, milliseconds(300));
  EXPECT_THAT(peer_error([&] { call->wait(soon()); }), HasSubstr("did not answer request 1 before the deadline"));
  EXPECT_TRUE(call->done());
  EXPECT_THAT(peer_error([&] { client->call("{}")->wait(soon()); }),
              HasSubstr("did not answer request 1 before the deadline"));
  EXPECT_EQ(server->next(seconds(60)).value().kind, Event::Kind::gone);
}

// Longer than any buffer between the two, and the server takes nothing of it before the client has given up.
TEST_F(GrpcTest, GivesUpALongBodyInTime) {
  const int port = test::free_port();
  const auto stopped = test::Child([&] { test::echo_for_ever(concat("grpc://127.0.0.1:", port)); });
  const auto client = connect(concat("grpc://127.0.0.1:", port), kAccess, soon());
  EXPECT_EQ(client->call("x")->wait(soon()), "echo x");
  stopped.signal(SIGSTOP);
  auto body = std::make_unique<std::vector<std::byte>>(size_t{256} << 20);
  const auto call = client->call("{}", *body);
  EXPECT_THAT(peer_error([&] { call->wait(Clock::now() + milliseconds(500)); }), HasSubstr("before the deadline"));
  body = nullptr; // nobody looks at it any more, says AddressSanitizer
}

TEST_F(GrpcTest, AServerThatEndsIsHeard) {
  auto server = serve("grpc://127.0.0.1:0", kAccess);
  const std::string address = server->address();
  const auto client = connect(address, kAccess, soon());
  const auto call = client->call("{}");
  EXPECT_EQ(server->next(seconds(60)).value().header, "{}");
  server = nullptr;
  EXPECT_THAT(peer_error([&] { call->wait(soon()); }), HasSubstr("has ended"));
  // The same address serves again, and a client that looks for it meanwhile finds it.
  std::promise<void> done;
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(200));
    EchoServer again(address);
    done.get_future().wait();
  });
  const auto second = connect(address, kAccess, soon());
  EXPECT_EQ(second->call("b")->wait(soon()), "echo b");
  done.set_value();
  later.join();
}

TEST_F(GrpcTest, WhatWasRepliedComesThoughTheServerEnds) {
  auto server = serve("grpc://127.0.0.1:0", kAccess);
  const auto client = connect(server->address(), kAccess, soon());
  const auto idle = connect(server->address(), kAccess, soon());
  const auto body = pattern(size_t{40} << 20, 1);
  std::vector<std::byte> room(body.size());
  const auto first = client->call("first", {}, room);
  const auto second = client->call("second");
  const auto event = server->next(seconds(60)).value();
  const auto last = server->next(seconds(60)).value();
  std::copy(body.begin(), body.end(), event.room.begin());
  server->reply(event.id, "yes");
  server->reply(last.id, "too");
  server = nullptr;
  EXPECT_EQ(first->wait(soon()), "yes");
  EXPECT_EQ(second->wait(soon()), "too");
  EXPECT_TRUE(room == body);
}

TEST_F(GrpcTest, NobodyIsAnErrorInTime) {
  const auto start = Clock::now();
  EXPECT_THAT(test::why_not_in_time(concat("grpc://127.0.0.1:", test::free_port()), "Connection refused"),
              HasSubstr("does not answer (failed to connect to all addresses"));
  EXPECT_GE(Clock::now() - start, milliseconds(900));
}

TEST_F(GrpcTest, AKilledClientIsGone) {
  const int port = test::free_port();
  const auto client = test::Child([&] {
    const auto connected = connect(concat("grpc://127.0.0.1:", port), kAccess, soon());
    const std::vector<std::byte> body(1000);
    connected->call("{}", body)->wait(soon());
  });
  const auto server = serve(concat("grpc://127.0.0.1:", port), kAccess);
  const auto request = server->next(seconds(60)).value();
  client.signal(SIGKILL);
  const auto gone = server->next(seconds(60)).value();
  EXPECT_EQ(gone.kind, Event::Kind::gone);
  EXPECT_EQ(gone.client, request.client);
  EXPECT_EQ(request.body.size(), 1000u); // still there
  EXPECT_EQ(request.body[999], std::byte{0});
  server->reply(request.id, "late");
}

// Its connection stays open, and it sends nothing.
TEST_F(GrpcTest, ASilentClientIsGone) {
  ::setenv("TRIREME_GRPC_SILENCE", "6", 1);
  const int port = test::free_port();
  const auto client =
      test::Child([&] { connect(concat("grpc://127.0.0.1:", port), kAccess, soon())->call("{}")->wait(soon()); });
  const auto server = serve(concat("grpc://127.0.0.1:", port), kAccess);
  EXPECT_EQ(server->next(seconds(60)).value().header, "{}");
  client.signal(SIGSTOP);
  EXPECT_EQ(server->next(seconds(60)).value().kind, Event::Kind::gone);
}

TEST_F(GrpcTest, ASilentServerIsHeard) {
  ::setenv("TRIREME_GRPC_SILENCE", "6", 1);
  const int port = test::free_port();
  const auto server = test::Child([&] { test::echo_for_ever(concat("grpc://127.0.0.1:", port)); });
  const auto client = connect(concat("grpc://127.0.0.1:", port), kAccess, soon());
  EXPECT_EQ(client->call("x")->wait(soon()), "echo x");
  server.signal(SIGSTOP);
  EXPECT_THAT(peer_error([&] { client->call("y")->wait(Clock::now() + seconds(100)); }), HasSubstr("has ended"));
}

TEST_F(GrpcTest, RefusesAddressesAndSaysWhy) {
  EXPECT_THAT(error_of([] { serve("grpc://127.0.0.1", kAccess); }),
              HasSubstr("\"grpc://127.0.0.1\" is not an address"));
  EXPECT_THAT(error_of([] { serve("grpc://127.0.0.1:70000", kAccess); }), HasSubstr("is not an address"));
  EXPECT_THAT(error_of([] { connect("grpc://a/b:1", kAccess, soon()); }), HasSubstr("is not an address"));
  EXPECT_THAT(error_of([] { serve("grpc://0.0.0.0:0", kAccess); }), HasSubstr("means every address"));
  EXPECT_THAT(error_of([] { serve("grpc://192.0.2.1:0", {}); }), HasSubstr("there is no secret"));
  EXPECT_THAT(error_of([] { serve("grpc://192.0.2.1:1", kAccess); }), HasSubstr("cannot listen on 192.0.2.1:1: "));
  const auto server = serve("grpc://127.0.0.1:0", kAccess);
  EXPECT_THAT(error_of([&] { serve(server->address(), kAccess); }), HasSubstr("ddress already in use"));
  EXPECT_EQ(serve("grpc://[::1]:0", kAccess)->address().substr(0, 13), "grpc://[::1]:");
}

// As the launcher keeps one for each server: who asks between two servers waits for the second.
TEST_F(GrpcTest, ServesOnASocketThatListensAlready) {
  const Descriptor kept(store::listen_on({"127.0.0.1", 0}));
  const auto on_it = [&](std::string prefix) {
    return std::make_unique<EchoServer>(concat("grpc+fd://", ::dup(kept.get())), kAccess, std::move(prefix));
  };
  const std::string address = concat("grpc://127.0.0.1:", store::bound_port(kept.get()));
  auto first = on_it("first ");
  EXPECT_EQ(first->address(), address);
  const std::vector<std::byte> body = pattern(3 << 20, 1);
  std::vector<std::byte> room(body.size());
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(connect(address, kAccess, soon()));
    EXPECT_EQ(clients.back()->call(concat(i), body, room)->wait(soon()), concat("first ", i));
    EXPECT_TRUE(std::equal(body.rbegin(), body.rend(), room.begin()));
  }
  first.reset();
  EXPECT_THAT(peer_error([&] { clients.front()->call("x")->wait(soon()); }), HasSubstr("has ended"));
  auto waiting =
      std::async(std::launch::async, [&] { return connect(address, kAccess, soon())->call("y")->wait(soon()); });
  EXPECT_EQ(waiting.wait_for(milliseconds(300)), std::future_status::timeout);
  const auto second = on_it("second ");
  EXPECT_EQ(waiting.get(), "second y");
  EXPECT_THAT(error_of([] { serve("grpc+fd://0x", kAccess); }), HasSubstr("is not a listening socket of this process"));
}

TEST_F(GrpcTest, LetsInWhoKnowsTheSecret) {
  EchoServer server("grpc://127.0.0.1:0");
  Access other = kAccess;
  other.secret.back() ^= 1;
  EXPECT_THAT(error_of([&] { connect(server.address(), other, soon()); }), HasSubstr("the secret is wrong"));
  EXPECT_THAT(error_of([&] { connect(server.address(), {"", kAccess.job}, soon()); }),
              HasSubstr("the secret is wrong"));
  EXPECT_THAT(error_of([&] { connect(server.address(), {kAccess.secret, "other"}, soon()); }),
              HasSubstr("belongs to another job (this is job \"other\")"));
  EXPECT_THROW(connect(server.address(), other, soon()), InputError);
  EXPECT_EQ(connect(server.address(), kAccess, soon())->call("x")->wait(soon()), "echo x");
  EchoServer open("grpc://localhost:0", Access{});
  EXPECT_EQ(connect(open.address(), {}, soon())->call("x")->wait(soon()), "echo x");
}

TEST(WithoutGrpcTest, SaysWhatToInstall) {
  ::setenv("TRIREME_GRPC_MODULE", "/nowhere/libtrireme_grpc.so", 1);
  const std::string error = error_of([] { connect("grpc://127.0.0.1:1", {}, soon()); });
  EXPECT_THAT(error, HasSubstr("cannot be loaded: /nowhere/libtrireme_grpc.so"));
  EXPECT_THAT(error, HasSubstr("apt-get install libgrpc++-dev"));
}

} // namespace
} // namespace trireme::rpc
