// What only "tcp://" has: foreign clients, shared memory, processes that are killed.
#include "tests/extensions/server/rpc/transport.h"
#include "tests/store/raw_connection.h"
#include "tests/support/two_hosts.h"

#include <trireme/base/error.h>
#include <trireme/extensions/server/rpc/tcp/frames.h>
#include <trireme/extensions/server/rpc/tcp/tcp.h>
#include <trireme/store/doorkeeper.h>
#include <trireme/store/handshake.h>

#include <signal.h>
#include <sys/wait.h>

namespace trireme::rpc::test {
namespace {

using comm::shm::Arena;
using store::test::RawConnection;

const Access kAccess{.secret = "0123456789abcdef0123456789abcdef", .job = "test"};

std::string text_of(const tcp::Head& head) {
  const tcp::HeadBytes bytes = tcp::pack(head);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string request(uint64_t id, const std::string& header) {
  return text_of({.id = id, .header_bytes = header.size()}) + header;
}

/// A member of the job that says what it likes after the handshake.
std::unique_ptr<RawConnection> member(const std::string& address) {
  auto connection = std::make_unique<RawConnection>(tcp::parse_address(address));
  const std::string received = connection->receive(store::kGreetingBytes);
  store::Greeting greeting{};
  std::copy(received.begin(), received.end(), greeting.begin());
  const store::Answer answer = store::make_answer(store::Secret(kAccess.secret), greeting);
  connection->send({answer.data(), answer.size()});
  EXPECT_EQ(connection->receive(1 + store::kProofBytes).substr(0, 1), "A");
  return connection;
}

/// A server and a client of the job, which must not notice what others do.
class StrangersTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(client_->call("still")->wait(soon()), "re: still");
    EXPECT_EQ(connect(serving_.address, kAccess, soon())->call("new")->wait(soon()), "re: new");
  }
  Serving serving_{"tcp://127.0.0.1:0", kAccess};
  std::unique_ptr<Client> client_ = connect(serving_.address, kAccess, soon());
};

TEST_F(StrangersTest, RandomBytes) {
  std::minstd_rand random(3);
  for (int turn = 0; turn < 20; ++turn) {
    std::string garbage(1 + random() % 3000, '\0');
    std::generate(garbage.begin(), garbage.end(), [&] { return static_cast<char>(random()); });
    RawConnection stranger(tcp::parse_address(serving_.address));
    stranger.send(garbage);
    EXPECT_TRUE(stranger.closed());
    const auto insider = member(serving_.address);
    insider->send(garbage + std::string(tcp::kHeadBytes, 'x'));
    EXPECT_TRUE(insider->closed()) << "a member that speaks another language is sent away too";
  }
}

TEST_F(StrangersTest, PromisesThatNobodyCanKeep) {
  const uint64_t huge = uint64_t{1} << 60;
  for (const tcp::Head& head :
       {tcp::Head{.id = 1, .header_bytes = huge}, tcp::Head{.id = 1, .body_bytes = huge},
        tcp::Head{.id = 1, .room_bytes = huge}, tcp::Head{.id = 1, .body_bytes = 16, .body_at = 64},
        tcp::Head{.id = 1, .room_bytes = 16, .room_at = huge}, tcp::Head{.kind = tcp::Head::Kind::reply, .id = 1}}) {
    const auto insider = member(serving_.address);
    insider->send(request(0, "{}") + text_of(head));
    insider->receive(tcp::kHeadBytes + 16); // the answer to the greeting
    EXPECT_TRUE(insider->closed());
  }
  for (const std::string& greeting :
       {std::string("no JSON"), std::string("[]"), std::string(R"({"host": 1, "arena": []})"),
        std::string(R"({"arena": "1 2 3 4"})")}) {
    const auto insider = member(serving_.address);
    insider->send(request(1, greeting));
    EXPECT_TRUE(insider->closed()) << "the first request is number 0";
  }
  const auto impolite = member(serving_.address);
  impolite->send(request(0, "no JSON"));
  EXPECT_TRUE(impolite->closed());
}

TEST_F(StrangersTest, ThoseWhoNeverSpeak) {
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int turn = 0; turn < 20; ++turn) {
    silent.push_back(std::make_unique<RawConnection>(tcp::parse_address(serving_.address)));
    silent.push_back(member(serving_.address));
    silent.back()->send(request(0, "{}").substr(0, 20 + static_cast<size_t>(turn))); // and half a word
  }
  EXPECT_EQ(client_->call("among them")->wait(soon()), "re: among them");
}

TEST_F(StrangersTest, BytesThatComeOneByOne) {
  const auto slow = member(serving_.address);
  std::string words = request(0, "{}") + text_of({.id = 1, .header_bytes = 5, .body_bytes = 300, .room_bytes = 300}) +
                      "hello" + std::string(300, 'a');
  words += request(2, "again");
  for (size_t at = 0; at < words.size(); at += 3) {
    slow->send(std::string_view(words).substr(at, 3));
  }
  const std::string greeting = R"({"shared":false})";
  const std::string answers = slow->receive(3 * tcp::kHeadBytes + greeting.size() + 9 + 300 + 9);
  EXPECT_THAT(answers, testing::HasSubstr(greeting));
  EXPECT_THAT(answers, testing::HasSubstr("re: hello" + std::string(300, 'b')));
  EXPECT_THAT(answers, testing::EndsWith("re: again"));
}

TEST(Doorkeeper, ClosesOneWhoIsLate) {
  const store::test::Door door;
  store::Doorkeeper keeper(Descriptor(door.listening),
                           {.who = "the test", .patience = milliseconds(50), .most_strangers = 4});
  RawConnection stranger(door.endpoint);
  std::vector<std::unique_ptr<RawConnection>> crowd;
  for (int turn = 0; turn < 8; ++turn) {
    crowd.push_back(std::make_unique<RawConnection>(door.endpoint));
  }
  EXPECT_TRUE(store::test::eventually([&] {
    EXPECT_TRUE(keeper.serve().empty());
    return keeper.refused() == 9;
  }));
  EXPECT_TRUE(stranger.closed());
}

TEST(SharedMemory, TheServerSeesTheClientsOwnBytes) {
  std::atomic<bool> same{true};
  Bytes body(100'000, true);
  Bytes room(100'000, true);
  Serving serving("tcp://127.0.0.1:0", kAccess, [&](Server& server, const Event& event) {
    same = same && (event.kind == Event::Kind::gone ||
                    (event.body.data() == body.span.data() && event.room.data() == room.span.data()));
    Serving::answer(server, event);
  });
  const auto client = connect(serving.address, kAccess, soon());
  EXPECT_EQ(client->call("x", body.span, room.span)->wait(soon()), "re: x");
  EXPECT_TRUE(same);
}

/// A client in a process of its own, killed while the server works on its request.
TEST(SharedMemory, OutlivesAClientThatIsKilled) {
  const auto server = serve("tcp://127.0.0.1:0", kAccess);
  const pid_t child = ::fork(); // before this process has an arena or threads
  if (child == 0) {
    Bytes body(8 << 20, true);
    Bytes room(8 << 20, true);
    body.fill(5);
    connect(server->address(), kAccess, soon())->call("work", body.span, room.span)->wait(soon());
    ::_exit(3); // nobody answers
  }
  std::optional<Event> work;
  while (!work) {
    work = server->next(milliseconds(100));
  }
  EXPECT_EQ(work->body.size(), size_t{8} << 20);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  std::optional<Event> gone;
  const auto deadline = soon();
  while (!gone && Clock::now() < deadline) {
    gone = server->next(milliseconds(100));
  }
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->kind, Event::Kind::gone);
  EXPECT_EQ(gone->client, work->client);
  EXPECT_TRUE(std::equal(work->body.begin(), work->body.end(), Bytes(8 << 20, false).fill(5).span.begin()))
      << "all of its bytes are still there";
  answer_into(work->body, work->room);
  EXPECT_TRUE(is_answer(work->body, work->room));
  server->reply(work->id, "");
}

/// A launcher keeps the listening socket: clients that come while nobody serves are answered by the next server.
TEST(Descriptors, ANewServerOnTheSocketOfADeadOne) {
  const int listening = store::listen_on({"127.0.0.1", 0});
  const std::string address = tcp::address_of({"127.0.0.1", store::bound_port(listening)});
  const auto start = [&] { return std::make_unique<Serving>("fd://" + std::to_string(::dup(listening)), kAccess); };
  auto first = start();
  EXPECT_EQ(first->address, address);
  const auto old = connect(address, kAccess, soon());
  first.reset();
  EXPECT_THROW(old->call("x")->wait(soon()), PeerError);
  std::unique_ptr<Client> client;
  std::thread early([&] { client = connect(address, kAccess, soon()); });
  const auto second = start();
  early.join();
  EXPECT_EQ(client->call("x")->wait(soon()), "re: x");
  ::close(listening);
}

TEST(Descriptors, NobodyListens) {
  const int listening = store::listen_on({"127.0.0.1", 0});
  const std::string address = tcp::address_of({"127.0.0.1", store::bound_port(listening)});
  ::close(listening);
  EXPECT_THROW(connect(address, kAccess, Clock::now() + milliseconds(50)), PeerError);
}

TEST(Loopback, OnlyThereASecretMayBeMissing) {
  Serving serving("tcp://127.0.0.1:0", {});
  EXPECT_EQ(connect(serving.address, {}, soon())->call("x")->wait(soon()), "re: x");
  const std::string own = store::own_address_towards("192.0.2.1");
  if (!store::is_loopback(own)) {
    EXPECT_THROW(serve("tcp://" + own + ":0", {}), InputError);
  }
}

/// Both sides of a cut cable find out, an idle client too.
TEST(Network, ASilentHostIsFound) {
  if (const auto missing = trireme::test::TwoHosts::missing()) {
    GTEST_SKIP() << *missing;
  }
  const trireme::test::TwoHosts hosts;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    hosts.enter(1);
    char address[128] = {};
    const ssize_t got = ::read(ends[0], address, sizeof(address) - 1);
    const auto client = connect(std::string(address, static_cast<size_t>(got)), kAccess, soon());
    Bytes room(100, true);
    const auto call = client->call("wait", {}, room.span);
    try {
      call->wait(soon());
    } catch (const PeerError& error) {
      ::_exit(std::string(error.what()).find("before the deadline") == std::string::npos ? 0 : 4);
    }
    ::_exit(3);
  }
  hosts.enter(0);
  const auto server = serve("tcp://" + hosts.address(0) + ":0", kAccess);
  const std::string address = server->address();
  ASSERT_EQ(::write(ends[1], address.data(), address.size()), static_cast<ssize_t>(address.size()));
  std::optional<Event> event;
  while (!event) {
    event = server->next(milliseconds(100));
  }
  EXPECT_EQ(event->header, "wait");
  EXPECT_EQ(event->room.size(), 100u);
  hosts.cut();
  const auto cut = Clock::now();
  std::optional<Event> gone;
  while (!gone && Clock::now() < cut + seconds(55)) {
    gone = server->next(milliseconds(100));
  }
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->kind, Event::Kind::gone);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the client finds out by itself, before its deadline";
}

} // namespace
} // namespace trireme::rpc::test
