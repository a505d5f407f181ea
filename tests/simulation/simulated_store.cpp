#include "simulated_store.h"

#include <trireme/store/messages.h>

#include <utility>

namespace trireme::simulation {

struct SimulatedStore::Connection {
  uint64_t number = 0;
  int process = -1;
  std::shared_ptr<SimulatedLink> there;
  std::shared_ptr<SimulatedLink> back;
  // The server's side.
  bool open = true;
  bool parked = false;
  int64_t wait = 0; // of several waits, which one
  std::optional<store::LastWill> will;
  // The client's side.
  bool lost = false;
  std::optional<std::string> reply;
};

class SimulatedChannel final : public store::Channel {
 public:
  SimulatedChannel(SimulatedStore& store, std::shared_ptr<SimulatedStore::Connection> connection)
      : store_(store), connection_(std::move(connection)) {}
  ~SimulatedChannel() override {
    connection_->lost = true;
    connection_->there->send([&store = store_, connection = connection_] { store.end(connection); });
  }

  std::string exchange(const std::string& request, std::chrono::milliseconds patience) override {
    Simulator& simulator = store_.simulator_;
    simulator.begin_call();
    if (connection_->lost) {
      throw store::LostError("the connection has been closed");
    }
    connection_->reply.reset();
    connection_->there->send(
        [&store = store_, connection = connection_, request = request.substr(store::kLengthBytes)] {
          if (connection->open) {
            store.serve(connection, request);
          }
        });
    simulator.sent();
    const auto deadline = simulator.now() + patience;
    if (!simulator.block_until(deadline, [this] { return connection_->reply.has_value() || connection_->lost; })) {
      connection_->lost = true;
      throw store::LostError("it has not answered in time");
    }
    if (!connection_->reply) {
      throw store::LostError("the connection has been closed");
    }
    return std::move(*connection_->reply);
  }

 private:
  SimulatedStore& store_;
  std::shared_ptr<SimulatedStore::Connection> connection_;
};

std::shared_ptr<store::Client> SimulatedStore::connect(std::chrono::milliseconds patience) {
  simulator_.begin_call();
  if (simulator_.now() < back_at_) {
    throw store::LostError("nobody listens");
  }
  auto connection = std::make_shared<Connection>();
  connection->number = ++last_number_;
  connection->process = simulator_.running();
  connection->there = std::make_shared<SimulatedLink>(simulator_);
  connection->back = std::make_shared<SimulatedLink>(simulator_);
  connections_[connection->number] = connection;
  simulator_.when_it_ends(connection->process, [this, connection] {
    if (simulator_.random().chance(0.5)) { // its host dies with it
      connection->there->cut();
      connection->there = std::make_shared<SimulatedLink>(simulator_);
    }
    connection->lost = true;
    connection->there->send([this, connection] { end(connection); });
  });
  return std::make_shared<store::Client>(std::make_unique<SimulatedChannel>(*this, std::move(connection)), patience);
}

void SimulatedStore::set_silent(int process, bool silent) {
  for (const auto& [number, connection] : connections_) {
    if (connection->process == process) {
      connection->there->set_silent(silent);
      connection->back->set_silent(silent);
    }
  }
}

void SimulatedStore::drop(int process) {
  for (const auto& [number, connection] : std::map(connections_)) {
    if (connection->process == process) {
      end(connection);
    }
  }
}

void SimulatedStore::lose(Clock::duration back_after) {
  back_at_ = simulator_.now() + back_after;
  for (const auto& [number, connection] : std::exchange(connections_, {})) {
    connection->open = false;
    connection->back->send([this, connection = connection] {
      connection->lost = true;
      simulator_.wake(connection->process);
    });
  }
  table_ = {};
}

void SimulatedStore::serve(const std::shared_ptr<Connection>& connection, const std::string& request) {
  store::Outcome outcome = store::carry_out(table_, connection->number, request);
  if (const auto* text = std::get_if<std::string>(&outcome)) {
    reply(connection, *text);
  } else if (const auto* parked = std::get_if<store::Parked>(&outcome)) {
    connection->parked = true;
    simulator_.after(parked->timeout, [this, connection, wait = ++connection->wait] {
      if (connection->open && connection->parked && connection->wait == wait) {
        table_.forget(connection->number);
        reply(connection, store::waited(false));
      }
    });
  } else {
    auto& will = std::get<store::LastWill>(outcome);
    const std::string text = std::move(will.reply);
    connection->will = will.key.empty() ? std::nullopt : std::optional(std::move(will));
    reply(connection, text);
  }
  answer_ready();
}

void SimulatedStore::reply(const std::shared_ptr<Connection>& connection, const std::string& reply) {
  connection->parked = false;
  connection->back->send([this, connection, text = reply.substr(store::kLengthBytes)] {
    connection->reply = text;
    simulator_.wake(connection->process);
  });
}

void SimulatedStore::end(const std::shared_ptr<Connection>& connection) {
  if (!std::exchange(connection->open, false)) {
    return;
  }
  table_.forget(connection->number);
  connections_.erase(connection->number);
  if (const auto will = std::exchange(connection->will, std::nullopt)) {
    table_.set(will->key, will->value);
    if (!will->counter.empty()) {
      table_.add(will->counter, 1);
    }
  }
  answer_ready();
  connection->back->send([this, connection] {
    connection->lost = true;
    simulator_.wake(connection->process);
  });
}

void SimulatedStore::answer_ready() {
  for (auto ready = table_.take_ready(); !ready.empty(); ready = table_.take_ready()) {
    for (const uint64_t number : ready) {
      if (const auto found = connections_.find(number); found != connections_.end() && found->second->parked) {
        reply(found->second, store::waited(true));
      }
    }
  }
}

} // namespace trireme::simulation
