#include <trireme/extensions/server/servers.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/comm/shm/arena.h>
#include <trireme/extensions/server/requests.h>
#include <trireme/extensions/server/server_connection.h>

#include <algorithm>
#include <utility>

namespace trireme::parallel::server {

using nlohmann::json;

// Allocates memory that servers of this host can read and write directly.
std::shared_ptr<std::byte[]> Servers::shareable(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  if (comm::shm::Arena::obstacle().empty()) {
    if (void* const memory = comm::shm::Arena::process().allocate(bytes)) {
      return {static_cast<std::byte*>(memory), [](std::byte* block) { comm::shm::Arena::process().release(block); }};
    }
  }
  return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
}

Servers::Servers(WorkerOptions options, std::vector<ParameterInfo> parameters, json optimizer)
    : options_(std::move(options)), parameters_(std::move(parameters)), optimizer_(std::move(optimizer)) {
  std::vector<Share> shares = share_out(parameters_, static_cast<int>(options_.addresses.size()));
  for (size_t s = 0; s < shares.size(); ++s) {
    auto server = std::make_unique<Connection>();
    server->number = static_cast<int>(s);
    server->address = options_.addresses[s];
    server->share = std::move(shares[s]);
    server->longest = std::max(
        server->bytes(),
        static_cast<size_t>(row_layout(parameters_, server->share, all_rows(parameters_, server->share)).bytes));
    server->gradients = shareable(server->longest);
    server->values = shareable(server->longest);
    connect(*server);
    servers_.push_back(std::move(server));
  }
}

Servers::~Servers() = default;

void Servers::connect(Connection& server) {
  if (server.client) {
    sent_before_ += server.client->bytes_sent();
    received_before_ += server.client->bytes_received();
  }
  server.pushed.reset();
  server.call.reset();
  server.answer.reset();
  server.client.reset();
  server.version.reset();
  server.client = rpc::connect(server.address, options_.access, rpc::Clock::now() + options_.patience);
  const int64_t loads = server.loads;
  const json reply = ask(server, {{"op", "join"},
                                  {"worker", options_.worker},
                                  {"workers", options_.workers},
                                  {"parameters", describe(parameters_)},
                                  {"optimizer", optimizer_},
                                  {"lives", server.joined},
                                  {"restarted", options_.restarted}});
  if (reply.at("bytes").get<int64_t>() != server.share.bytes ||
      reply.at("servers").get<size_t>() != options_.addresses.size() ||
      reply.at("server").get<int>() != server.number) {
    throw InputError("server",
                     concat(server.address, " reports that it is server ", reply.at("server").get<int>(), " of ",
                            reply.at("servers").get<int>(), "; this worker expects ", server.number, " of ",
                            options_.addresses.size()),
                     "Give all workers the servers' addresses in the same order.");
  }
  if (server.joined && server.loads < loads) {
    throw Error("server",
                concat("server ", server.number, " (", server.address,
                       ") was restarted from a state before the checkpoint was loaded"),
                "See its log for why it could not write a snapshot.");
  }
  server.joined = true;
  server.arrays = reply.at("arrays").get<std::vector<std::string>>();
  server.array_bytes = reply.at("array_bytes");
  server.initialized = reply.at("initialized");
  hybrid_ = reply.at("mode") == "hybrid";
}

void Servers::send(Connection& server, const json& header, std::span<const std::byte> body, std::span<std::byte> room) {
  server.call = server.client->call(header.dump(), body, room);
}

json Servers::receive(Connection& server) {
  return receive(server, std::exchange(server.call, nullptr));
}

json Servers::receive(Connection& server, const std::shared_ptr<rpc::Call>& call) {
  const json reply = json::parse(call->wait(rpc::Clock::now() + kLongestAnswer));
  if (reply.at("status") == "refused") {
    throw InputError("server", concat("server ", server.number, " (", server.address,
                                      ") refuses: ", reply.at("error").get<std::string>()));
  }
  server.clock = reply.at("clock");
  server.first_clock =
      reply.contains("first_clock") ? std::optional(reply["first_clock"].get<int64_t>()) : std::nullopt;
  server.loads = reply.value("loads", server.loads);
  if (server.number == 0) {
    step_ = reply.value("step", step_);
    first_worker_ = reply.value("first_worker", first_worker_);
  }
  if (reply.contains("steps")) {
    steps_ = reply["steps"];
  }
  return reply;
}

json Servers::ask(Connection& server, const json& header, std::span<const std::byte> body, std::span<std::byte> room) {
  send(server, header, body, room);
  return receive(server);
}

void Servers::ask_for_values(Connection& server, json header, std::span<const std::byte> body) {
  if (server.version) {
    header["have"] = *server.version;
  }
  send(server, header, body, server.room_for_values());
}

void Servers::take_values(Connection& server, const TensorOf& values) {
  const json reply = receive(server);
  scatter(server, reply, values);
}

bool Servers::initialized() const {
  return std::all_of(servers_.begin(), servers_.end(), [](const auto& server) { return server->initialized; });
}

void Servers::initialize(const TensorOf& values) {
  for (const auto& server : servers_) {
    gather_values(*server, values);
    send(*server, {{"op", "init"}}, {server->gradients.get(), server->bytes()});
  }
  for (const auto& server : servers_) {
    receive(*server);
    server->initialized = true;
  }
}

void Servers::pull(const TensorOf& values) {
  for (const auto& server : servers_) {
    ask_for_values(*server, {{"op", "pull"}, {"clock", server->clock}});
  }
  for (const auto& server : servers_) {
    take_or_pull(*server, values);
  }
  catch_up(values);
}

void Servers::take_or_pull(Connection& server, const TensorOf& values, std::optional<int64_t> first_clock) {
  try {
    take_values(server, values);
  } catch (const PeerError&) {
    connect_again(server, [&](int64_t) {
      ask_for_values(server, first_clock ? json{{"op", "pull"}, {"first_clock", *first_clock}}
                                         : json{{"op", "pull"}, {"clock", server.clock}});
      take_values(server, values);
    });
  }
}

// Pulls from servers that are behind server 0, because others may have stepped meanwhile. If servers were at different
// steps, only some of them would add this worker's next gradient to a sum.
void Servers::catch_up(const TensorOf& values) {
  const int64_t first = servers_.front()->clock;
  const json header = {{"op", "pull"}, {"first_clock", first}};
  std::vector<Connection*> behind;
  for (const auto& server : servers_) {
    const bool lacks_load = server->loads < servers_.front()->loads; // this worker may have to send the load
    if (server->number > 0 && !lacks_load && server->first_clock.value_or(first) < first) {
      behind.push_back(server.get());
      ask_for_values(*server, header); // to all at once: each learns that this worker has finished the step
    }
  }
  for (Connection* const server : behind) {
    take_or_pull(*server, values, first);
  }
}

void Servers::say_lost(const Connection& server, int64_t before) const {
  if (server.clock < before) {
    log::warning("server ", server.number, " was restarted from its snapshot at clock ", server.clock,
                 ": its updates after that, up to clock ", before, ", are lost");
  } else {
    log::warning("server ", server.number, " was restarted, with all updates that this worker knows of");
  }
}

void Servers::connect_again(Connection& server, const std::function<void(int64_t of_step)>& go_on) {
  const auto deadline = rpc::Clock::now() + options_.patience;
  const int64_t of_step = server.clock;
  while (true) {
    try {
      connect(server);
      say_lost(server, of_step);
      go_on(of_step);
      return;
    } catch (const PeerError&) { // it has ended again
      if (rpc::Clock::now() >= deadline) {
        throw;
      }
    }
  }
}

void Servers::for_each_array(const OfArray& f) {
  for (const auto& server : servers_) {
    const auto bytes = static_cast<size_t>(server->array_bytes) * server->arrays.size();
    const auto room = shareable(bytes);
    const int64_t clock = server->clock; // the clock of this worker's values
    ask(*server, {{"op", "get_arrays"}}, {}, {room.get(), bytes});
    server->clock = clock;
    visit_arrays(*server, room.get(), f);
  }
}

void Servers::leave() {
  for (const auto& server : servers_) {
    if (server->client) {
      try {
        ask(*server, {{"op", "leave"}, {"worker", options_.worker}});
      } catch (const Error& error) {
        log::debug("leaving server ", server->number, ": ", error.what());
      }
      server->client.reset();
    }
  }
}

int64_t Servers::clock() const {
  return servers_.front()->clock;
}

int64_t Servers::bytes_received() const {
  int64_t sum = received_before_;
  for (const auto& server : servers_) {
    sum += server->client ? server->client->bytes_received() : 0;
  }
  return sum;
}

int64_t Servers::bytes_sent() const {
  int64_t sum = sent_before_;
  for (const auto& server : servers_) {
    sum += server->client ? server->client->bytes_sent() : 0;
  }
  return sum;
}

} // namespace trireme::parallel::server
