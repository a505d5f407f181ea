#pragma once

#include "server_job.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// Requests to a server that are made by hand, so that their order is known.
namespace trireme::parallel::server {

using nlohmann::json;
using Values = std::array<float, 2>;
inline constexpr double kLr = 0.5;

inline rpc::Clock::time_point soon() {
  return rpc::Clock::now() + std::chrono::seconds(20);
}

/// One connection of a worker of a model with one parameter of two elements.
class Hand {
 public:
  explicit Hand(const std::string& of, int worker = 0, int workers = 2, const json& more = json::object())
      : address(of), client_(rpc::connect(of, {}, soon())), worker_(worker) {
    json header = {{"op", "join"},
                   {"worker", worker},
                   {"workers", workers},
                   {"parameters", {{{"name", "w"}, {"shape", {2}}}}},
                   {"optimizer", {{"type", "SGD"}, {"params", {{"lr", kLr}}}}}};
    header.update(more);
    joined = ask(header);
  }
  json ask(const json& header, const Values* body = nullptr, bool with_room = false) {
    return answer(*send(header, body, with_room));
  }
  struct Asked {
    Values body{};
    std::array<std::byte, 64> room{};
    std::array<std::byte, 64> padded{};
    std::shared_ptr<rpc::Call> call;
    Values values() const {
      Values values;
      std::memcpy(values.data(), room.data(), sizeof(values));
      return values;
    }
  };
  std::shared_ptr<Asked> send(json header, const Values* body = nullptr, bool with_room = false) {
    auto asked = std::make_shared<Asked>();
    if (body != nullptr) {
      std::memcpy(asked->padded.data(), body->data(), sizeof(*body));
    }
    asked->call = client_->call(
        header.dump(), body != nullptr ? std::span<const std::byte>(asked->padded) : std::span<const std::byte>(),
        with_room ? std::span<std::byte>(asked->room) : std::span<std::byte>());
    return asked;
  }
  static json answer(const Asked& asked) { return json::parse(asked.call->wait(soon())); }
  std::shared_ptr<Asked> push_pull(int64_t clock, const Values& gradient, json more = json::object()) {
    json header = {{"op", "push_pull"}, {"worker", worker_}, {"clock", clock}};
    header.update(more);
    return send(header, &gradient, true);
  }
  std::shared_ptr<Asked> push(int64_t clock, const Values& gradient, double loss = 0) {
    return send({{"op", "push"}, {"worker", worker_}, {"clock", clock}, {"loss", loss}}, &gradient, true);
  }
  std::shared_ptr<Asked> sum(int64_t clock, const std::vector<int>& members) {
    return send({{"op", "sum"}, {"worker", worker_}, {"clock", clock}, {"members", members}});
  }
  std::shared_ptr<Asked> commit(int64_t clock, double factor, json more = json::object()) {
    json header = {{"op", "commit"}, {"worker", worker_}, {"clock", clock}, {"lr", kLr}, {"factor", factor}};
    header.update(more);
    return send(header, nullptr, true);
  }
  json status() { return ask({{"op", "status"}}); }
  Values values() {
    const auto asked = send({{"op", "pull"}, {"clock", 0}}, nullptr, true);
    answer(*asked);
    return asked->values();
  }
  std::shared_ptr<Asked> load(const std::string& id, json more = json::object()) {
    json header = {{"op", "load"}, {"worker", worker_}, {"id", id}, {"step", 20}};
    header.update(more);
    return send(header);
  }
  /// The optimizer is SGD without momentum, which has no arrays.
  json set(int64_t number, const Values& values, int64_t steps) {
    return ask({{"op", "set"}, {"worker", worker_}, {"number", number}, {"steps", steps}}, &values);
  }
  void init(const Values& first) { ask({{"op", "init"}}, &first); }

  /// The server's.
  const std::string address;
  json joined;

 private:
  std::unique_ptr<rpc::Client> client_;
  int worker_;
};

inline ServerOptions mode(ServerOptions::Mode mode, int64_t staleness = 0, double timeout_s = 1000) {
  ServerOptions options;
  options.mode = mode;
  options.staleness = staleness;
  options.timeout_s = timeout_s;
  return options;
}

/// Expects that `body` meets no error, in a process with the server `place` of place + 1.
inline void by_hand(const ServerOptions& options, int place,
                    const std::function<void(const std::string& address)>& body) {
  EXPECT_THAT(test::with_server(options, body, {}, place), testing::IsEmpty());
}
inline void by_hand(const ServerOptions& options, const std::function<void(const std::string& address)>& body) {
  by_hand(options, 0, body);
}

/// The same with workers 0 and 1 of two; `first` are the values before the first step.
inline void with_two(const ServerOptions& options, const Values& first, int place,
                     const std::function<void(Hand& one, Hand& two)>& body) {
  by_hand(options, place, [&](const std::string& address) {
    Hand one(address, 0);
    Hand two(address, 1);
    one.init(first);
    body(one, two);
  });
}
inline void with_two(const ServerOptions& options, const Values& first,
                     const std::function<void(Hand& one, Hand& two)>& body) {
  with_two(options, first, 0, body);
}

} // namespace trireme::parallel::server
