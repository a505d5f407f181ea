#pragma once

#include <trireme/comm/shm/arena.h>
#include <trireme/extensions/server/rpc/rpc.h>

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace trireme::rpc::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Far more than anything takes here, also on a busy machine.
inline Clock::time_point soon() {
  return Clock::now() + seconds(60);
}

/// One way from a client to a server: every test of TransportTest holds for each.
struct Transport {
  std::string name;
  std::string address;
  /// The client's memory is in its arena, and the server sees it.
  bool shared = false;
};

inline std::vector<Transport> transports() {
  return {{"tcp", "tcp://127.0.0.1:0", false}, {"tcp_shared_memory", "tcp://127.0.0.1:0", true}};
}

/// Memory of a body or a room: in the arena where the transport shares it.
class Bytes {
 public:
  Bytes(size_t size, bool shared) : plain_(shared ? 0 : size) {
    if (shared) {
      auto* const memory = static_cast<std::byte*>(comm::shm::Arena::process().allocate(size));
      shared_ = memory;
      span = {memory, size};
    } else {
      span = plain_;
    }
  }
  ~Bytes() {
    if (shared_ != nullptr) {
      comm::shm::Arena::process().release(shared_);
    }
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  Bytes& fill(unsigned seed) {
    std::minstd_rand random(seed + 1);
    for (std::byte& byte : span) {
      byte = static_cast<std::byte>(random());
    }
    return *this;
  }

  std::span<std::byte> span;

 private:
  std::vector<std::byte> plain_;
  std::byte* shared_ = nullptr;
};

/// What the answering server makes of a body: every byte plus one, over and over until the room is full.
inline void answer_into(std::span<const std::byte> body, std::span<std::byte> room) {
  for (size_t i = 0; i < room.size(); ++i) {
    room[i] =
        body.empty() ? std::byte{7} : static_cast<std::byte>(std::to_integer<unsigned>(body[i % body.size()]) + 1);
  }
}

inline bool is_answer(std::span<const std::byte> body, std::span<const std::byte> room) {
  std::vector<std::byte> expected(room.size());
  answer_into(body, expected);
  return std::equal(room.begin(), room.end(), expected.begin());
}

/// A server whose thread hands every event to `handle`, by default one that answers "re: " and the header.
class Serving {
 public:
  using Handle = std::function<void(Server&, const Event&)>;
  static void answer(Server& server, const Event& event) {
    if (event.kind == Event::Kind::request) {
      answer_into(event.body, event.room);
      server.reply(event.id, "re: " + event.header);
    }
  }

  Serving(const std::string& address, const Access& access, Handle handle = answer)
      : server_(serve(address, access)), address(server_->address()) {
    thread_ = std::thread([this, handle = std::move(handle)] {
      while (!stop_) {
        if (const auto event = server_->next(milliseconds(20))) {
          handle(*server_, *event);
        }
      }
    });
  }
  ~Serving() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::unique_ptr<Server> server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;

 public:
  const std::string address;
};

class TransportTest : public testing::TestWithParam<Transport> {
 protected:
  TransportTest() {
    if (!GetParam().shared) {
      ::setenv("TRIREME_HOST", "elsewhere", 1); // the server, made before, believes to be on another host
    }
  }
  /// Makes a server of the fixture's transport.
  std::unique_ptr<Server> make_server() {
    ::unsetenv("TRIREME_HOST");
    auto server = serve(GetParam().address, access_);
    if (!GetParam().shared) {
      ::setenv("TRIREME_HOST", "elsewhere", 1);
    }
    return server;
  }
  std::unique_ptr<Serving> make_serving(Serving::Handle handle = Serving::answer) {
    ::unsetenv("TRIREME_HOST");
    auto serving = std::make_unique<Serving>(GetParam().address, access_, std::move(handle));
    if (!GetParam().shared) {
      ::setenv("TRIREME_HOST", "elsewhere", 1);
    }
    return serving;
  }
  Bytes bytes(size_t size) const { return Bytes(size, GetParam().shared); }

  const Access access_{.secret = "0123456789abcdef0123456789abcdef", .job = "test"};
};

} // namespace trireme::rpc::test
