#include "simulated_rpc.h"

#include <trireme/base/error.h>

#include <tests/simulation/simulated_link.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::simulation {
namespace {

constexpr const char* kNext = "Look at the story of the seed.";
constexpr size_t kLongestNote = 160;

/// The story of one seed has all messages.
void note_message(Simulator& simulator, uint64_t connection, const char* way, const std::string& header) {
  static const bool wanted = std::getenv("TRIREME_SEED") != nullptr;
  if (wanted) {
    simulator.note(concat("connection ", connection, way, header.substr(0, kLongestNote)));
  }
}

struct Asked {
  std::optional<std::string> reply;
  std::span<std::byte> room;
  bool abandoned = false;
};

struct Connection {
  uint64_t number = 0;
  int client = -1;
  int server = -1;
  std::shared_ptr<SimulatedLink> there;
  std::shared_ptr<SimulatedLink> back;
  bool broken = false; // for the client
  bool gone = false;   // for the server
  int64_t received = 0;
};

struct Request {
  std::shared_ptr<Connection> connection;
  std::shared_ptr<Asked> asked;
  std::vector<std::byte> body;
  std::vector<std::byte> room;
};

struct Service {
  int process = -1;
  std::deque<rpc::Event> events;
  std::map<uint64_t, Request> waiting;
  uint64_t last_id = 0;
  bool closed = false;
};

} // namespace

struct SimulatedRpc::Host : std::enable_shared_from_this<Host> {
  explicit Host(Simulator& simulator) : simulator(simulator) {}

  void ask(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Service>& service, std::string header,
           std::vector<std::byte> body, const std::shared_ptr<Asked>& asked) {
    connection->there->send(
        [this, connection, service, header = std::move(header), body = std::move(body), asked]() mutable {
          if (connection->gone || service->closed) {
            return;
          }
          note_message(simulator, connection->number, " > ", header);
          const uint64_t id = ++service->last_id;
          Request& request = service->waiting[id];
          request = {connection, asked, std::move(body), std::vector<std::byte>(asked->room.size())};
          service->events.push_back(
              {rpc::Event::Kind::request, connection->number, id, std::move(header), request.body, request.room});
          simulator.wake(service->process);
        });
  }
  void leave(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Service>& service) {
    connection->there->send([this, connection, service] { gone(connection, service); });
  }
  void gone(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Service>& service) {
    if (!std::exchange(connection->gone, true) && !service->closed) {
      service->events.push_back({rpc::Event::Kind::gone, connection->number, 0, {}, {}, {}});
      simulator.wake(service->process);
    }
  }
  void break_for_client(const std::shared_ptr<Connection>& connection) {
    connection->back->send([this, connection] {
      connection->broken = true;
      simulator.wake(connection->client);
    });
  }
  void end_of_server(const std::string& name, const std::shared_ptr<Service>& service) {
    if (std::exchange(service->closed, true)) {
      return;
    }
    if (const auto found = services.find(name); found != services.end() && found->second == service) {
      services.erase(found);
    }
    for (const auto& [number, connection] : std::map(connections)) {
      if (connection.second == service) {
        if (simulator.random().chance(0.5)) {
          connection.first->back->cut();
          connection.first->back = std::make_shared<SimulatedLink>(simulator);
        }
        break_for_client(connection.first);
      }
    }
  }

  Simulator& simulator;
  std::map<std::string, std::shared_ptr<Service>> services;
  std::map<std::string, std::vector<int>> waiting_for; // processes, by the name that they connect to
  std::map<uint64_t, std::pair<std::shared_ptr<Connection>, std::shared_ptr<Service>>> connections;
  uint64_t last_connection = 0;
};

namespace {

using Host = SimulatedRpc::Host;

std::map<Simulator*, std::shared_ptr<Host>>& hosts() {
  thread_local std::map<Simulator*, std::shared_ptr<Host>> all;
  return all;
}

class SimulatedCall final : public rpc::Call {
 public:
  SimulatedCall(std::shared_ptr<Host> host, std::shared_ptr<Connection> connection, std::shared_ptr<Asked> asked)
      : host_(std::move(host)), connection_(std::move(connection)), asked_(std::move(asked)) {}
  std::string wait(Clock::time_point deadline) override {
    host_->simulator.begin_call();
    if (!host_->simulator.block_until(deadline, [this] { return done(); })) {
      connection_->broken = asked_->abandoned = true;
      throw PeerError("rpc", "the server has not answered in time", kNext);
    }
    if (!asked_->reply) {
      asked_->abandoned = true;
      throw PeerError("rpc", "the connection to the server has ended", kNext);
    }
    return *asked_->reply;
  }
  bool wait_until(Clock::time_point time) override {
    host_->simulator.begin_call();
    return host_->simulator.block_until(time, [this] { return done(); });
  }
  bool done() const override { return asked_->reply || connection_->broken; }

 private:
  std::shared_ptr<Host> host_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Asked> asked_;
};

class SimulatedClient final : public rpc::Client {
 public:
  SimulatedClient(std::shared_ptr<Host> host, std::shared_ptr<Connection> connection, std::shared_ptr<Service> service)
      : host_(std::move(host)), connection_(std::move(connection)), service_(std::move(service)) {}
  ~SimulatedClient() override {
    connection_->broken = true;
    for (const auto& asked : asked_) {
      asked->abandoned = true;
    }
    if (host_->connections.erase(connection_->number) == 1) {
      host_->leave(connection_, service_);
    }
  }
  std::shared_ptr<rpc::Call> call(std::string header, std::span<const std::byte> body,
                                  std::span<std::byte> room) override {
    host_->simulator.begin_call();
    auto asked = std::make_shared<Asked>();
    asked->room = room;
    if (!connection_->broken) {
      sent_ += static_cast<int64_t>(body.size());
      host_->ask(connection_, service_, std::move(header), {body.begin(), body.end()}, asked);
      std::erase_if(asked_, [](const auto& one) { return one->reply.has_value(); });
      asked_.push_back(asked);
      host_->simulator.sent();
    }
    return std::make_shared<SimulatedCall>(host_, connection_, std::move(asked));
  }
  int64_t bytes_sent() const override { return sent_; }
  int64_t bytes_received() const override { return connection_->received; }

 private:
  std::shared_ptr<Host> host_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Service> service_;
  std::vector<std::shared_ptr<Asked>> asked_;
  int64_t sent_ = 0;
};

class SimulatedServer final : public rpc::Server {
 public:
  SimulatedServer(std::shared_ptr<Host> host, std::string name) : host_(std::move(host)), name_(std::move(name)) {
    Simulator& simulator = host_->simulator;
    simulator.begin_call();
    service_->process = simulator.running();
    if (!host_->services.try_emplace(name_, service_).second) {
      throw InputError("rpc", concat("there is a server sim://", name_, " already"),
                       "Give each server a name of its own.");
    }
    simulator.when_it_ends(service_->process,
                           [host = host_, name = name_, service = service_] { host->end_of_server(name, service); });
    for (const int process : std::exchange(host_->waiting_for[name_], {})) {
      simulator.wake(process);
    }
  }
  ~SimulatedServer() override { host_->end_of_server(name_, service_); }
  std::optional<rpc::Event> next(std::chrono::milliseconds timeout) override {
    Simulator& simulator = host_->simulator;
    simulator.begin_call();
    if (!simulator.block_until(simulator.now() + timeout, [this] { return !service_->events.empty(); })) {
      return std::nullopt;
    }
    rpc::Event event = std::move(service_->events.front());
    service_->events.pop_front();
    return event;
  }
  void reply(uint64_t id, std::string header, size_t body_bytes) override {
    host_->simulator.begin_call();
    const auto found = service_->waiting.find(id);
    if (found == service_->waiting.end()) {
      return;
    }
    Request request = std::move(found->second);
    service_->waiting.erase(found);
    const size_t bytes = std::min(body_bytes, request.room.size());
    request.room.resize(bytes);
    const auto connection = request.connection;
    connection->back->send([host = host_, request = std::move(request), header = std::move(header)]() mutable {
      Connection& to = *request.connection;
      if (to.broken || request.asked->abandoned) {
        return;
      }
      std::copy(request.room.begin(), request.room.end(), request.asked->room.begin());
      to.received += static_cast<int64_t>(request.room.size());
      note_message(host->simulator, to.number, " < ", header);
      request.asked->reply = std::move(header);
      host->simulator.wake(to.client);
    });
    host_->simulator.sent();
  }
  std::string address() const override { return "sim://" + name_; }

 private:
  std::shared_ptr<Host> host_;
  std::string name_;
  std::shared_ptr<Service> service_ = std::make_shared<Service>();
};

std::string name_in(const std::string& address) {
  return address.substr(std::string("sim://").size());
}

std::unique_ptr<rpc::Client> connect(const std::string& name, Clock::time_point deadline) {
  const auto host = hosts().at(&Simulator::here());
  Simulator& simulator = host->simulator;
  simulator.begin_call();
  host->waiting_for[name].push_back(simulator.running());
  if (!simulator.block_until(deadline, [&] { return host->services.contains(name); })) {
    throw PeerError("rpc", concat("no server answers at sim://", name), kNext);
  }
  const auto service = host->services.at(name);
  auto connection = std::make_shared<Connection>();
  connection->number = ++host->last_connection;
  connection->client = simulator.running();
  connection->server = service->process;
  connection->there = std::make_shared<SimulatedLink>(simulator);
  connection->back = std::make_shared<SimulatedLink>(simulator);
  host->connections[connection->number] = {connection, service};
  simulator.when_it_ends(connection->client, [host, connection, service] {
    connection->broken = true;
    if (host->connections.erase(connection->number) == 0) {
      return;
    }
    if (host->simulator.random().chance(0.5)) { // its host dies with it
      connection->there->cut();
      connection->there = std::make_shared<SimulatedLink>(host->simulator);
    }
    host->leave(connection, service);
  });
  return std::make_unique<SimulatedClient>(host, std::move(connection), service);
}

} // namespace

SimulatedRpc::SimulatedRpc(Simulator& simulator) : host_(std::make_shared<Host>(simulator)) {
  [[maybe_unused]] static const bool added = [] {
    rpc::add_transport({"sim://",
                        [](const std::string& address, const rpc::Access&) -> std::unique_ptr<rpc::Server> {
                          return std::make_unique<SimulatedServer>(hosts().at(&Simulator::here()), name_in(address));
                        },
                        [](const std::string& address, const rpc::Access&, Clock::time_point deadline) {
                          return connect(name_in(address), deadline);
                        }});
    return true;
  }();
  hosts()[&simulator] = host_;
}

SimulatedRpc::~SimulatedRpc() {
  host_->simulator.end_processes();
  hosts().erase(&host_->simulator);
}

void SimulatedRpc::set_silent(int client, int server, bool silent) {
  for (const auto& [number, one] : host_->connections) {
    if (one.first->client == client && one.first->server == server) {
      one.first->there->set_silent(silent);
      one.first->back->set_silent(silent);
    }
  }
}

void SimulatedRpc::break_connections(int client, int server) {
  for (const auto& [number, one] : std::map(host_->connections)) {
    if (one.first->client == client && one.first->server == server) {
      host_->connections.erase(number);
      host_->gone(one.first, one.second);
      host_->break_for_client(one.first);
    }
  }
}

} // namespace trireme::simulation
