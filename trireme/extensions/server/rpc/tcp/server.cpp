#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/comm/shm/arena.h>
#include <trireme/extensions/server/rpc/tcp/buffer_pool.h>
#include <trireme/extensions/server/rpc/tcp/streams.h>
#include <trireme/extensions/server/rpc/tcp/tcp.h>
#include <trireme/store/doorkeeper.h>

#include <nlohmann/json.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>

namespace trireme::rpc::tcp {
namespace {

using comm::shm::PeerArena;
using std::chrono::milliseconds;

constexpr uint64_t kDoorkeeper = 0;
/// Bytes read from one connection per round, so that none starves the others.
constexpr size_t kReadAtOnce = 8 << 20;
/// Number of unanswered requests from which on a client's connection is not read.
constexpr size_t kMostUnanswered = 1 << 16;

/// A request, with the memory of its body and its room. Lives until its reply is sent.
struct Request {
  Head head;
  uint64_t connection = 0;
  std::string header;
  std::span<std::byte> body;
  std::span<std::byte> room;
  std::shared_ptr<std::byte> body_memory;
  std::shared_ptr<std::byte> room_memory;
  /// Keeps the client's memory mapped after the client has ended.
  std::shared_ptr<PeerArena> arena;
};

class TcpServer;

/// An authenticated client.
struct Connection : FrameTaker {
  Connection(TcpServer& server, uint64_t number, Descriptor socket)
      : server(server), number(number), socket(std::move(socket)) {}
  Place begin(std::span<const std::byte, kHeadBytes> bytes) override;
  void finished() override;

  TcpServer& server;
  const uint64_t number;
  Descriptor socket;
  std::string peer;
  FrameReader reader;
  FrameWriter writer;
  std::shared_ptr<Request> coming;
  std::shared_ptr<PeerArena> arena;
  bool greeted = false;
  size_t unanswered = 0;
  uint32_t interest = 0;
};

class TcpServer : public Server {
 public:
  TcpServer(Descriptor listening, const Access& access)
      : address_(address_of({store::bound_host(listening.get()), store::bound_port(listening.get())})),
        host_(store::host_identity()),
        door_(std::move(listening), {.secret = access.secret.empty() ? store::Secret() : store::Secret(access.secret),
                                     .job = access.job,
                                     .who = "the server at " + address_}),
        events_(epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event door{.events = EPOLLIN, .data = {.u64 = kDoorkeeper}};
    if (!events_ || epoll_ctl(events_.get(), EPOLL_CTL_ADD, door_.fd(), &door) != 0) {
      throw Error("rpc", concat("cannot serve at ", address_, ": ", std::strerror(errno), "."),
                  "Raise the limit on open files (ulimit -n).");
    }
  }

  std::optional<Event> next(milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    while (true) {
      move_bytes(ready_.empty() ? deadline : Clock::time_point::min());
      if (!ready_.empty()) {
        Event event = std::move(ready_.front());
        ready_.pop_front();
        return event;
      }
      if (Clock::now() >= deadline) {
        return std::nullopt;
      }
    }
  }

  void reply(uint64_t id, std::string header, size_t body_bytes) override {
    const auto found = requests_.find(id);
    if (found == requests_.end()) {
      return;
    }
    const std::shared_ptr<Request> request = std::move(found->second);
    requests_.erase(found);
    const auto asker = connections_.find(request->connection);
    if (asker == connections_.end()) {
      return;
    }
    Connection& connection = *asker->second;
    --connection.unanswered;
    request->body = {};
    request->room = request->room.first(std::min(body_bytes, request->room.size()));
    request->body_memory.reset();
    send(connection, *request, header, request);
  }

  std::string address() const override { return address_; }

  /// Handles the connection's first request, which offers the client's memory.
  void greet(Connection& connection, const Request& hello) {
    const auto offer = nlohmann::json::parse(hello.header, nullptr, false);
    if (hello.head.id != 0 || !offer.is_object()) {
      throw BadFrame("its first request is not an offer of memory");
    }
    if (const auto arena = offer.find("arena");
        arena != offer.end() && arena->is_string() && offer.value("host", "") == host_) {
      try {
        connection.arena = PeerArena::map(arena->get<std::string>());
      } catch (const Error&) { // another container or user: bodies are sent
      }
    }
    connection.greeted = true;
    send(connection, hello, nlohmann::json{{"shared", connection.arena != nullptr}}.dump(), nullptr);
  }

  void take(Connection& connection, std::shared_ptr<Request> request) {
    if (!connection.greeted) {
      greet(connection, *request);
      return;
    }
    Event event;
    event.client = connection.number;
    event.id = next_request_++;
    event.header = std::move(request->header);
    event.body = request->body;
    event.room = request->room;
    ++connection.unanswered;
    requests_.emplace(event.id, std::move(request));
    ready_.push_back(std::move(event));
  }

  BufferPool& pool() { return pool_; }

 private:
  void send(Connection& connection, const Request& request, const std::string& header,
            std::shared_ptr<const void> owner) {
    Head head;
    head.kind = Head::Kind::reply;
    head.id = request.head.id;
    head.header_bytes = header.size();
    head.body_bytes = request.room.size();
    head.body_at = request.head.room_at == kInStream ? kInStream : 0;
    connection.writer.add(head, header,
                          head.streamed() > 0 ? std::span<const std::byte>(request.room) : std::span<const std::byte>(),
                          std::move(owner));
    if (connection.writer.send_some(connection.socket.get())) {
      watch(connection);
    } else {
      ::shutdown(connection.socket.get(), SHUT_RDWR); // the next round closes it
    }
  }

  void move_bytes(Clock::time_point until) {
    const auto wake = std::min({until, door_.wake(), looked_at_ + kBetweenLooks});
    int timeout = 0;
    if (until != Clock::time_point::min()) {
      timeout = static_cast<int>(
          std::clamp<int64_t>(std::chrono::ceil<milliseconds>(wake - Clock::now()).count(), 0, 60'000));
    }
    std::array<epoll_event, 64> happened;
    const int count = epoll_wait(events_.get(), happened.data(), static_cast<int>(happened.size()), timeout);
    bool knocked = door_.wake() <= Clock::now();
    for (int place = 0; place < count; ++place) {
      const epoll_event& one = happened[static_cast<size_t>(place)];
      if (one.data.u64 == kDoorkeeper) {
        knocked = true;
      } else {
        serve(*connections_.at(one.data.u64), one.events);
      }
    }
    if (knocked) {
      for (Descriptor& socket : door_.serve()) {
        admit(std::move(socket));
      }
    }
    if (const auto now = Clock::now(); now >= looked_at_ + kBetweenLooks) {
      looked_at_ = now;
      for (const auto& [number, connection] : connections_) {
        if (store::is_silent(connection->socket.get())) {
          ::shutdown(connection->socket.get(), SHUT_RDWR); // the next round closes it
        }
      }
    }
  }

  void admit(Descriptor socket) {
    store::let_wait_to_read(socket.get());
    const uint64_t number = next_connection_++;
    auto connection = std::make_unique<Connection>(*this, number, std::move(socket));
    connection->peer = store::peer_name(connection->socket.get());
    connection->interest = EPOLLIN;
    epoll_event interest{.events = EPOLLIN, .data = {.u64 = number}};
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, connection->socket.get(), &interest) == 0) {
      connections_.emplace(number, std::move(connection));
    }
  }

  void serve(Connection& connection, uint32_t events) {
    const uint64_t number = connection.number;
    bool works = true;
    try {
      if ((events & EPOLLOUT) != 0) {
        works = connection.writer.send_some(connection.socket.get());
      }
      if (works && (events & EPOLLIN) != 0) {
        works = connection.reader.read_some(connection.socket.get(), connection, kReadAtOnce);
      } else if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
        works = false;
      }
    } catch (const BadFrame& problem) {
      log::warning("the server at ", address_, " closed a connection of ", connection.peer, ": ", problem.happened);
      works = false;
    } catch (const std::bad_alloc&) {
      log::warning("the server at ", address_, " closed a connection of ", connection.peer,
                   ": no memory for its request");
      works = false;
    }
    if (works) {
      watch(connection);
      return;
    }
    const bool greeted = connection.greeted;
    connections_.erase(number);
    if (greeted) {
      Event gone;
      gone.kind = Event::Kind::gone;
      gone.client = number;
      ready_.push_back(std::move(gone));
    }
  }

  void watch(Connection& connection) {
    const uint32_t wanted =
        (connection.unanswered < kMostUnanswered ? EPOLLIN : 0u) | (connection.writer.empty() ? 0u : EPOLLOUT);
    if (wanted != connection.interest) {
      connection.interest = wanted;
      epoll_event interest{.events = wanted, .data = {.u64 = connection.number}};
      epoll_ctl(events_.get(), EPOLL_CTL_MOD, connection.socket.get(), &interest);
    }
  }

  const std::string address_;
  const std::string host_;
  store::Doorkeeper door_;
  Descriptor events_;
  BufferPool pool_;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_;
  std::deque<Event> ready_;
  Clock::time_point looked_at_ = Clock::now();
  uint64_t next_connection_ = kDoorkeeper + 1;
  uint64_t next_request_ = 1;
};

FrameTaker::Place Connection::begin(std::span<const std::byte, kHeadBytes> bytes) {
  coming = std::make_shared<Request>();
  Request& request = *coming;
  request.head = unpack(bytes, Head::Kind::request, arena == nullptr ? 0 : arena->size());
  if (!greeted && (request.head.body_bytes > 0 || request.head.room_bytes > 0)) {
    throw BadFrame("its first request has a body");
  }
  request.connection = number;
  request.arena = arena;
  request.header.resize(request.head.header_bytes);
  const auto place = [&](uint64_t at, uint64_t size, std::shared_ptr<std::byte>& memory) -> std::span<std::byte> {
    if (size == 0) {
      return {};
    }
    if (at != kInStream) {
      return {arena->base() + at, size};
    }
    memory = server.pool().take(size);
    return {memory.get(), size};
  };
  request.body = place(request.head.body_at, request.head.body_bytes, request.body_memory);
  request.room = place(request.head.room_at, request.head.room_bytes, request.room_memory);
  return {request.header, request.head.streamed() > 0 ? request.body : std::span<std::byte>()};
}

void Connection::finished() {
  server.take(*this, std::move(coming));
}

} // namespace

std::unique_ptr<Server> serve(Descriptor listening, const Access& access) {
  if (access.secret.empty() && !store::bound_to_loopback(listening.get())) {
    throw InputError("rpc", "this server can be reached from other hosts, but there is no secret.",
                     "Start with trireme launch or trireme train, which make one, or set TRIREME_SECRET_FILE.");
  }
  return std::make_unique<TcpServer>(std::move(listening), access);
}

} // namespace trireme::rpc::tcp
